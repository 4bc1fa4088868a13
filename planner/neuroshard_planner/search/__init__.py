"""The search: sharding options, greedy placement, beam search, and local search."""
