"""Names, labels and owners of children. Pure functions."""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.job.training_job import API_VERSION, KIND
from neuroshard_decisions import names
from neuroshard_decisions.context import Context


def labels(context: Context, role: str, **more: str) -> dict[str, str]:
    """Return the labels of a child: whose it is, what it is for, and how watches find it."""
    return {
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        "app.kubernetes.io/name": "dlrm-training-job",
        "app.kubernetes.io/instance": context.name,
        names.JOB_LABEL: context.name,
        names.ROLE_LABEL: role,
        **more,
    }


def metadata(context: Context, name: str, role: str, more_labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of a child that goes when its job goes."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": context.name,
        "uid": context.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": context.observed.job.namespace,
        "labels": {**labels(context, role), **(more_labels or {})},
        "ownerReferences": [owner],
    }
