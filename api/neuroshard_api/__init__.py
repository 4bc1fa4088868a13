"""Documents that pass between the rooms. Computes nothing and imports nothing of ours."""
