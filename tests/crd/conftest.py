"""The custom resource on an API server that has nothing else."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config
from neuroshard_cluster.bare_api import BareApi
from support.jobs.stored_jobs import Jobs

CRD = Path(__file__).parents[2] / "crds" / "dlrmtrainingjobs.yaml"


@pytest.fixture(scope="session")
def jobs(bare_api: BareApi) -> Iterator[Jobs]:
    """The custom resource on it."""
    bare_api.kubectl.define(f"{CRD.stem}.training.neuroshard.dev", CRD.read_text(encoding="utf-8"))
    api: Any = config.new_client_from_config(str(bare_api.kubectl.kubeconfig))  # type: ignore[no-untyped-call]
    with contextlib.closing(api):
        yield Jobs(api)
