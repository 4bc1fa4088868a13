"""Kubernetes objects as values, trimmed to what decisions need, and how they are parsed. Calls no API."""
