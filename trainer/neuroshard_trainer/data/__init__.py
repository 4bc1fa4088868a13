"""Samples: one module per format, and the order in which all ranks read them."""
