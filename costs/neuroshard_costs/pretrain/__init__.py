"""Pre-training and calibration of cost models. The one place of the planner that imports torch."""
