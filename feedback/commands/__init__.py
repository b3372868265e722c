"""The commands of feedback; `ratchet.cli` loads a module when its group is called."""
