"""Measures one kind of device and the links between them, and fits cost models. Knows nothing of Kubernetes."""
