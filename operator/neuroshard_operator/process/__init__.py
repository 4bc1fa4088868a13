"""The operator's process: its Lease, health endpoints, log lines, and metrics."""
