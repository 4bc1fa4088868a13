"""Ranks of a training: devices, process groups, and the end of one of them."""
