"""A real multi-node Kubernetes on one machine, for tests. Never touches a cluster that it did not make."""
