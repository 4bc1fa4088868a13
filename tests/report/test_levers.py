"""What would help, as a sentence: also where it shortens a part for which nothing waits."""

import pytest
from neuroshard_api.documents.levers import Lever, LeverName
from neuroshard_api.documents.whole_step import HostCost, WholeStep
from neuroshard_report.levers import lever_line, waits_for_host
from support import builders

WIRE = Lever(name=LeverName.WIRE_TYPES, text="BF16", total_ms=0.7, saved_share=0.3, option="--set 'a=b'", field="a: b")
BATCH = WIRE.model_copy(update={"num_samples": 64, "text": "more samples"})


@pytest.mark.parametrize(
    ("host_ms", "dense_ms", "is_waiting"), [(9.0, 2.0, True), (1.0, 2.0, False), (9.0, None, False)]
)
def test_a_step_that_the_host_binds_stays_with_as_many_samples(
    host_ms: float, dense_ms: float | None, *, is_waiting: bool
) -> None:
    """It is known where the dense part is counted; more samples in a step of equal length do help."""
    host = HostCost(tables_ms=host_ms, dense_ms=0.0, launches=1, source="assumed")
    total_ms = max(host_ms, 1.0 + (dense_ms or 0.0))
    step = WholeStep(total_ms=total_ms, embedding_ms=1.0, dense_ms=dense_ms, host=host)
    plan = builders.plan().model_copy(update={"step": step})

    found = waits_for_host(plan)
    wire, batch = (lever_line(each, now_ms=1.0, num_samples=32, is_waiting=found) for each in (WIRE, BATCH))

    assert found == is_waiting
    assert ("of the embedding part; the step stays, for the host binds it" in wire) == is_waiting
    assert "host" not in batch
