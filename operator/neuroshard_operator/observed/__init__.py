"""Kubernetes objects parsed into what decisions need. Calls no API."""
