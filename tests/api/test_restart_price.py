"""The checkpoint that a job writes to learn the price of a restart."""

import pytest
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.job.replanning import Replanning, ReplanningMode
from neuroshard_api.lifecycle.restart_price import is_checkpoint_due

AUTO = Replanning(mode=ReplanningMode.AUTO)
STAYS = Replanning(mode=ReplanningMode.AUTO, avoid_slow_nodes=False)


def change(cause: SlowdownCause) -> DriftChange:
    """Return a change with that cause."""
    tables = ("item",) if cause is SlowdownCause.INPUTS_DRIFTED else ()
    evidence = (Evidence(part=StepPart.STEP, reference_ms=1.0, recent_ms=2.0),)
    return DriftChange(cause=cause, tables=tables, since_step=1, evidence=evidence)


@pytest.mark.parametrize(
    ("policy", "causes", "checkpoint_ms", "is_due"),
    [
        (AUTO, [SlowdownCause.INPUTS_DRIFTED], None, True),
        (AUTO, [SlowdownCause.DENSE_SLOW, SlowdownCause.NODE_SLOW], None, True),
        (STAYS, [SlowdownCause.DEVICE_SLOW], None, False),
        (AUTO, [SlowdownCause.EVERYTHING_SLOW], None, False),
        (AUTO, [], None, False),
        (AUTO, [SlowdownCause.INPUTS_DRIFTED], 0.0, False),
        (Replanning(), [SlowdownCause.INPUTS_DRIFTED], None, False),
    ],
    ids=["inputs", "a node", "nodes are not left", "no restart helps", "nothing", "measured", "mode Suggest"],
)
def test_a_checkpoint_is_due_where_only_its_price_is_missing(
    policy: Replanning, causes: list[SlowdownCause], checkpoint_ms: float | None, *, is_due: bool
) -> None:
    """In mode Auto, for causes that a restart answers, until one was measured."""
    assert is_checkpoint_due(policy, [change(cause) for cause in causes], checkpoint_ms=checkpoint_ms) is is_due
