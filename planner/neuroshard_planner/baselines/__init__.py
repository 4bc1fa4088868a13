"""Plans of other algorithms, for comparison."""
