"""Embedding servers: ranks that hold tables and bring no samples."""
