"""Pages of the release process."""
