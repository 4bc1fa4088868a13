"""What runs in the pods of a job next to its commands: their results go into ConfigMaps."""
