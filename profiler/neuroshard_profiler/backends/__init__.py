"""What times a sample: FBGEMM's fused kernels, torch's own EmbeddingBag, or the device simulator."""
