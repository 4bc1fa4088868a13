"""What ``neuroshard publish`` needs in a pod."""
