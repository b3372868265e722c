"""The commands of the gateway; `ratchet.cli` loads a module when its group is called."""
