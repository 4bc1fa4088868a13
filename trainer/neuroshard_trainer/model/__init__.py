"""Models: dense architectures, and embedding tables as a plan shards them."""
