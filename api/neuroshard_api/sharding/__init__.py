"""Names and rules of placements, kernels, and collectives."""
