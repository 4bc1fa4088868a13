"""Whether a running job takes another plan, and the record of it."""
