"""The custom resource DLRMTrainingJob, its status, and the commands of its stages."""
