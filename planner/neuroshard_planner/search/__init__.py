"""The search: sharding options, greedy placement, beam search, local search, and a lower bound."""
