"""Environment variables by which a pod knows its place among the pods of a job's workers."""

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
"""Set by Kubernetes in the pods of an Indexed Job: the pod's index."""
NODES_BEFORE_VARIABLE = "NEUROSHARD_NODES_BEFORE"
"""Set in pods of embedding servers: nodes of trainers, which come first. If unset: 0."""
