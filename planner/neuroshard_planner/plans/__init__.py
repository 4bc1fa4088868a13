"""From a placement to a plan document, near the plan in force if there is one, and from a document to its problems."""
