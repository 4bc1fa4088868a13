"""The operator: makes the cluster match each DLRMTrainingJob and says in conditions why it does not."""
