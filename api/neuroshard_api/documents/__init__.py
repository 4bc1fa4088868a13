"""The documents that pass between the parts, and how they are read and written."""
