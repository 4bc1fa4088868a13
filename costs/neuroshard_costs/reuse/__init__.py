"""How often the rows of a table are hit within a batch."""
