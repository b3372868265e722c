"""The demonstration: the product's main job on real parts, told while it happens."""
