"""Samples of training data: files of all formats, and the statistics of their tables."""
