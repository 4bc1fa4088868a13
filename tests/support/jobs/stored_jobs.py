"""DLRMTrainingJobs on a real API server, and its own words where it refuses one."""

import json
from collections.abc import Callable
from typing import Any

from kubernetes import client
from neuroshard_api.job import training_job
from neuroshard_api.job.spec import GROUP

NAMESPACE = "default"


class Jobs:
    """DLRMTrainingJobs of one API server; a refusal is returned as its message."""

    def __init__(self, api: Any) -> None:
        self._objects: Any = client.CustomObjectsApi(api)
        self._where = (GROUP, training_job.VERSION, NAMESPACE, training_job.PLURAL)

    def create(self, job: dict[str, Any], **options: str) -> dict[str, Any]:
        """Create a job as kubectl does: unknown fields are refused. Raises ApiException."""
        made: dict[str, Any] = self._objects.create_namespaced_custom_object(
            *self._where, job, field_validation="Strict", **options
        )
        return made

    def refusal(self, job: dict[str, Any]) -> str:
        """Return the refusal of a job; empty: it is accepted. Nothing is stored."""
        return refusal_of(lambda: self.create(job, dry_run="All"))

    def change(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Apply a merge patch. Raises ApiException."""
        changed: dict[str, Any] = self._objects.patch_namespaced_custom_object(
            *self._where, name, patch, field_validation="Strict"
        )
        return changed

    def change_refusal(self, name: str, patch: dict[str, Any]) -> str:
        """Return the refusal of a change; empty: it was made."""
        return refusal_of(lambda: self.change(name, patch))

    def change_status(self, name: str, status: dict[str, Any]) -> dict[str, Any]:
        """Replace parts of the status. Raises ApiException."""
        changed: dict[str, Any] = self._objects.patch_namespaced_custom_object_status(
            *self._where, name, {"status": status}, field_validation="Strict"
        )
        return changed


def refusal_of(call: Callable[[], object]) -> str:
    """Return the API server's own words; empty: it did what was asked."""
    try:
        call()
    except client.ApiException as error:
        message: str = json.loads(error.body or "{}")["message"]
        return message
    return ""
