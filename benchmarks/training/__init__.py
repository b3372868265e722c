"""What a training round costs, beside TRL on the same model, rows, precision and threads."""
