"""What several tests need and the product does not."""
