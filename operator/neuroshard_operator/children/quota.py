"""The Job that asks Kueue for quota of more workers: admitted or not, its pods are never scheduled."""

from neuroshard_api.job.spec import GROUP
from neuroshard_decisions import names
from neuroshard_decisions.actions import Ask
from neuroshard_decisions.context import Context

from neuroshard_operator.children.metadata import labels, metadata
from neuroshard_operator.children.workers import worker_job
from neuroshard_operator.settings import Settings
from neuroshard_operator.writes import Manifest

GATE = f"{GROUP}/quota"
"""Scheduling gate that nobody takes off."""
PRIORITY_LABEL = f"{names.KUEUE_LABEL_PREFIX}priority-class"


def quota_job(context: Context, settings: Settings, ask: Ask) -> Manifest:
    """Return the Job that asks for quota of more workers.

    Its pods are those of the workers, since their requests, node selector, and tolerations decide on quota. They have
    no priority, so that the question preempts no job of the usual one, and ask for no place.
    """
    workers = worker_job(context, settings, ask.run)
    spec = {key: value for key, value in workers["spec"]["template"]["spec"].items() if key != "priorityClassName"}
    own = {names.ATTEMPT_LABEL: str(ask.run.attempt)}
    queue = {key: value for key, value in context.queue_labels.items() if key != PRIORITY_LABEL}
    least = names.admitted_from(1) if ask.num_nodes > 1 else {}
    return {
        **workers,
        "metadata": {**metadata(context, ask.name, names.QUOTA, {**own, **queue}), "annotations": least},
        "spec": {
            **workers["spec"],
            "suspend": True,
            "completions": ask.num_nodes,
            "parallelism": ask.num_nodes,
            "template": {
                "metadata": {"labels": labels(context, names.QUOTA, **own)},
                "spec": {**spec, "schedulingGates": [{"name": GATE}]},
            },
        },
    }
