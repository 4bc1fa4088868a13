"""Plans in the words of other libraries."""
