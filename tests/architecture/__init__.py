"""What a reader should not have to take on trust: borders, names, documents, examples."""
