"""Leadership on a real API server."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from neuroshard_cluster.bare_api import BareApi
from neuroshard_operator.process.lease import while_leading


@pytest.mark.slow
def test_whoever_holds_the_lease_works_and_is_named_in_it(bare_api: BareApi) -> None:
    """The Lease is created by the first replica, and read back by it and by others."""
    seen: list[str] = []

    async def work() -> None:
        lease = bare_api.kubectl.get("lease", "operators")["spec"]
        seen.append(lease["holderIdentity"])

    async def run() -> None:
        configuration: Any = Configuration()
        load: Any = config.load_kube_config  # the package's types are partial
        await load(config_file=str(bare_api.kubectl.kubeconfig), client_configuration=configuration)
        async with ApiClient(configuration) as client:
            await while_leading(work, client=client, name="operators", namespace="default", identity="first")

    asyncio.run(run())

    assert seen == ["first"]
