"""Names, labels and owners of children. Pure functions."""

from collections.abc import Mapping
from typing import Any

from neuroshard_api.training_job import API_VERSION, KIND

from neuroshard_operator import names
from neuroshard_operator.context import View


def labels(view: View, role: str, **more: str) -> dict[str, str]:
    """Return the labels of a child: whose it is, what it is for, and how watches find it."""
    return {
        names.MANAGED_BY_LABEL: names.MANAGED_BY,
        "app.kubernetes.io/name": "dlrm-training-job",
        "app.kubernetes.io/instance": view.name,
        names.JOB_LABEL: view.name,
        names.ROLE_LABEL: role,
        **more,
    }


def metadata(view: View, name: str, role: str, more_labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the metadata of a child that goes when its job goes."""
    owner = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": view.name,
        "uid": view.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": view.observed.job.namespace,
        "labels": {**labels(view, role), **(more_labels or {})},
        "ownerReferences": [owner],
    }
