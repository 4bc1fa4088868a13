"""Narrow types on the wire: codecs of embeddings and gradients, and the guard of accuracy."""
