"""Builders of everything that the operator makes for a job: pure functions from a pass to manifests."""
