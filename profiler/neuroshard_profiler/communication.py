"""Collects records of all-to-alls: as one rank of torchrun, or from the simulator. Measures nothing itself."""

_STREAM = 1  # of the seed's random numbers; compute samples are drawn from another
