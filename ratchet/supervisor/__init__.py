"""`ratchet up`: starts the whole stack on one machine, keeps it running, and stops it in order."""
