"""The API server: calls, watches and what they brought, and the writes of a reconcile pass. Decides nothing."""
