"""What several commands share: options, output, and errors."""
