"""What feedback costs: snapshots at scale, leases under many raters."""
