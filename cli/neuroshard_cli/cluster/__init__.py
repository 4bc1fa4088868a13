"""What asks the API server of Kubernetes for jobs."""
