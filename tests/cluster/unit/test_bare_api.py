from pathlib import Path

import pytest
from neuroshard_cluster.bare_api import BareApi, bare_api
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home


@pytest.mark.api_server
@pytest.mark.slow
def test_what_it_stores_survives_a_restart(bare_api: BareApi) -> None:
    """The API server's own restart, as tests of retries need it."""
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}}
    bare_api.kubectl.apply(kept)
    bare_api.stop_api()
    bare_api.start_api()

    assert bare_api.kubectl.get("configmap", "kept")["data"] == {"a": "b"}


def test_programs_that_were_not_built_are_named(tmp_path: Path) -> None:
    """With what builds them."""
    with (
        pytest.raises(HostError, match="etcd, kubernetes; hint: `make api-build`"),
        bare_api(tmp_path, Home(root=tmp_path)),
    ):
        pass
