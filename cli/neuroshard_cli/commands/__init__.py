"""One module per command of ``neuroshard``."""
