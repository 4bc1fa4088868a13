"""The custom resource on an API server that has nothing else."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.waiting import eventually
from support.jobs.stored_jobs import Jobs

CRD = Path(__file__).parents[2] / "crds" / "dlrmtrainingjobs.yaml"


@pytest.fixture(scope="session")
def jobs(bare_api: BareApi) -> Iterator[Jobs]:
    """The custom resource on it."""
    api: Any = config.new_client_from_config(str(bare_api.kubectl.kubeconfig))  # type: ignore[no-untyped-call]
    with contextlib.closing(api):
        extensions: Any = client.ApiextensionsV1Api(api)
        definition = CRD.read_text(encoding="utf-8")
        # Applied and not created: tests of other folders share the API server.
        bare_api.kubectl.apply(definition)
        name = yaml.safe_load(definition)["metadata"]["name"]

        def established() -> bool:
            conditions = extensions.read_custom_resource_definition(name).status.conditions or []
            return any(each.type == "Established" and each.status == "True" for each in conditions)

        eventually("the resource is served", established, within_s=100)
        yield Jobs(api)
