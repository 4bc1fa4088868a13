"""A job whose samples come in sessions, with lists that repeat in them."""

import pytest
from e2e import jobs
from neuroshard_api.documents.plan import Plan
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]

USER = ("watched", "bought")
TABLES = [
    *({"name": name, "numEmbeddings": 100_000, "embeddingDim": 64, "poolingFactor": 50} for name in USER),
    {"name": "item", "numEmbeddings": 100_000, "embeddingDim": 64},
]
SESSIONS = {"samplesPerSession": "100", "groups": [{"features": list(USER), "changeProbability": "0.02"}]}


def test_status_has_the_planned_and_the_measured_factor_of_repeated_lists(namespace: Namespace) -> None:
    """The planner leaves repeats out, the workers train without them, and count how often the lists repeat."""
    kubectl = namespace.kubectl
    model = {"embeddingTables": TABLES, "batchSizePerDevice": 1024}
    spec = {"data": {"numSamples": 200_000}, "experimental": {"data": {"syntheticSessions": SESSIONS}}}
    kubectl.apply(jobs.training_job("shop", model=model, **spec, profiler=jobs.BUNDLED))
    seen = jobs.wait_for_stage(kubectl, "shop", "Succeeded")
    plan = Plan.from_json(jobs.files_in(kubectl, seen["plan"]["configMapRef"]["name"])["plan.json"])

    assert plan.deduplication is not None
    [planned], [measured] = (seen["cost"][kind]["duplicationFactors"] for kind in ("predicted", "measured"))
    assert planned["group"] == measured["group"]
    assert float(measured["factor"]) == pytest.approx(float(planned["factor"]), rel=0.05)
