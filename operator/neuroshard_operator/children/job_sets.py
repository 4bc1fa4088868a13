"""Workers and embedding servers of one attempt in a JobSet, which Kueue admits as one workload. Pure functions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neuroshard_decisions import names
from neuroshard_decisions.actions import Delete, WorkersRun
from neuroshard_decisions.context import Context

from neuroshard_operator.children.metadata import metadata
from neuroshard_operator.writes import Manifest

API_VERSION = "jobset.x-k8s.io/v1alpha2"


def job_set(context: Context, run: WorkersRun, jobs: Mapping[str, Manifest]) -> Manifest:
    """Return the JobSet of one attempt, whose Jobs are those of an attempt without one; `jobs` are by role.

    It has no failure policy: its controller ends both Jobs once one has failed or the workers have succeeded, and
    restarts are the operator's. The pods have their host names from the operator's Service, as in other attempts.
    """
    assert run.job_set is not None, "the run has one"
    more = {names.ATTEMPT_LABEL: str(run.attempt), **run.labels, **context.queue_labels}
    return {
        "apiVersion": API_VERSION,
        "kind": names.JOB_SET,
        "metadata": metadata(context, run.job_set, names.WORKER, more),
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": False},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [names.PARTS_OF_SET[names.WORKER]]},
            "replicatedJobs": [_part(role, job) for role, job in jobs.items()],
        },
    }


def _part(role: str, job: Manifest) -> dict[str, Any]:
    labels = job["metadata"]["labels"].items()
    template = {
        "metadata": {"labels": {key: value for key, value in labels if not key.startswith(names.KUEUE_LABEL_PREFIX)}},
        "spec": {key: value for key, value in job["spec"].items() if key != "suspend"},
    }
    return {"name": names.PARTS_OF_SET[role], "replicas": 1, "template": template}


def as_one(context: Context, action: Delete) -> Delete:
    """Return the deletion of the JobSet in place of that of a Job in it, which its controller would make again."""
    found = next((job.job_set for job in context.observed.jobs if job.meta.uid == action.uid), None)
    if action.kind != "Job" or found is None:
        return action
    return replace(action, kind=names.JOB_SET, name=found.name, uid=found.uid)
