"""What a plan may choose besides shards and devices, where the request permits it."""
