"""The dense part in a plan: options of its units, their frontier of time over memory, and its share next to tables."""
