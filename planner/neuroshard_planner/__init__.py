"""Finds sharding plans with pre-trained cost models. Knows no cluster, no GPU and no clock; imports no torch."""
