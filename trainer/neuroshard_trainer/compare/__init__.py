"""Trainings compared: plans by their step times, wire types by their accuracy."""
