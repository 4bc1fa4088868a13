"""Rules of a job's life that hold in a cluster and on one machine: failures, restarts, deadlines."""
