"""The dense part: its units, how they are sharded, and what they compute and keep."""
