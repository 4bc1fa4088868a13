"""Plans for people: text and HTML. Computes no cost of its own."""
