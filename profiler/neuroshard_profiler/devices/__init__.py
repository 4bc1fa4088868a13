"""The devices that torch backends time on: one CPU core, or one GPU."""
