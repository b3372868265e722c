"""The rating page and its JSON twin."""
