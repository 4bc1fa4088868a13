"""A job on this machine: its stages as processes, its folder, and its progress."""
