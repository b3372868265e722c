"""From snapshot rows to batches: rows -> render -> truncate -> order -> packing -> branches."""
