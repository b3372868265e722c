"""The commands that belong to the whole stack, a module each."""
