"""Builders of everything that the operator makes for a job: pure functions from a look to manifests."""
