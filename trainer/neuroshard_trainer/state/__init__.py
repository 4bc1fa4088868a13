"""State of a training: checkpoints, and what is in them."""
