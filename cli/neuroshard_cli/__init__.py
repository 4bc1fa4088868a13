"""The neuroshard command. One file per command, no logic of its own."""
