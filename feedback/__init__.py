"""What people say about answers: events, comparisons, preference pairs, and the data sets made of them."""
