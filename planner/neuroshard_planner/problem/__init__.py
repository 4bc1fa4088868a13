"""A request as numbers: shard kinds with their costs, units, and the memory of each device."""
