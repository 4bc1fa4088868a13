"""What is known of a job, its children, and their results, as values trimmed to what decisions need."""
