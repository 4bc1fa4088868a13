"""A bare API server that knows the custom resource, and a client for it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from neuroshard_cluster.bare import bare_api_server, missing_programs
from neuroshard_cluster.folders import default_home
from neuroshard_cluster.waiting import eventually
from stored_jobs import Jobs

CRD = Path(__file__).parents[2] / "crds" / "dlrmtrainingjobs.yaml"


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The way to a new API server, alone."""
    home = default_home()
    if missing := missing_programs(home):
        pytest.skip(f"rules are tried on a real API server: {missing}")
    with bare_api_server(tmp_path_factory.mktemp("api-server"), home) as path:
        yield path


@pytest.fixture(scope="session")
def jobs(kubeconfig: Path) -> Iterator[Jobs]:
    """The custom resource on it."""
    api: Any = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
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
