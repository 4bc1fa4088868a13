"""What a job needs next: from what was observed of it to what is to run. The same in a cluster and on one machine."""
