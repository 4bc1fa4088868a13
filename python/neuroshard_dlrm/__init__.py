"""Plan the sharding of embedding tables from Python, with what the ``neuroshard`` command does."""
