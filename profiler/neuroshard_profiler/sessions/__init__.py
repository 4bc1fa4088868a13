"""Logs whose samples come in sessions: how often lists repeat, and files clustered by session."""
