"""What is timed: kernels, collectives, codecs, launches, and the samples that are drawn for them."""
