"""What every process of ours shares: exit codes, missing packages, files, and memory."""
