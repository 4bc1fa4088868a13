"""A bare API server that knows the custom resource, and a client for it."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from neuroshard_api import training_job
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.waiting import eventually

CRD = Path(__file__).parents[2] / "crds" / "dlrmtrainingjobs.yaml"
NAMESPACE = "default"


class Jobs:
    """DLRMTrainingJobs of one API server; a refusal is returned as its message."""

    def __init__(self, api: Any) -> None:
        self._objects: Any = client.CustomObjectsApi(api)
        self._where = (training_job.GROUP, training_job.VERSION, NAMESPACE, training_job.PLURAL)

    def create(self, job: dict[str, Any], **options: str) -> dict[str, Any]:
        """Create a job as kubectl does: unknown fields are refused. Raises ApiException."""
        made: dict[str, Any] = self._objects.create_namespaced_custom_object(
            *self._where, job, field_validation="Strict", **options
        )
        return made

    def refusal(self, job: dict[str, Any]) -> str:
        """Return why a job is refused; empty: it is not. Nothing is stored."""
        return refusal_of(lambda: self.create(job, dry_run="All"))

    def change(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Apply a merge patch. Raises ApiException."""
        changed: dict[str, Any] = self._objects.patch_namespaced_custom_object(
            *self._where, name, patch, field_validation="Strict"
        )
        return changed

    def change_refusal(self, name: str, patch: dict[str, Any]) -> str:
        """Return why a change is refused; empty: it was made."""
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


@pytest.fixture(scope="session")
def jobs(bare_api: BareApi) -> Iterator[Jobs]:
    """The custom resource on an API server."""
    api: Any = config.new_client_from_config(str(bare_api.kubectl.kubeconfig))  # type: ignore[no-untyped-call]
    with contextlib.closing(api):
        extensions: Any = client.ApiextensionsV1Api(api)
        definition = yaml.safe_load(CRD.read_text(encoding="utf-8"))
        extensions.create_custom_resource_definition(definition, field_validation="Strict")
        name = definition["metadata"]["name"]

        def established() -> bool:
            conditions = extensions.read_custom_resource_definition(name).status.conditions or []
            return any(each.type == "Established" and each.status == "True" for each in conditions)

        eventually("the resource is served", established, within_s=30)
        yield Jobs(api)
