"""The trainer's part of the command line."""
