"""Memory alone: whether tables fit and how, and why they do not."""
