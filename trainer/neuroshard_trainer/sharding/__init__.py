"""A plan in TorchRec: sharded, proven, and optimized."""
