"""From a placement to a plan document, and from a plan document to its problems."""
