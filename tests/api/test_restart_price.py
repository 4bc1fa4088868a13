"""The checkpoint that a job writes to learn the price of a restart."""

import pytest
from neuroshard_api.documents.drift_report import DriftChange, Evidence, SlowdownCause, StepPart
from neuroshard_api.job.replanning import ReplanningMode
from neuroshard_api.lifecycle.restart_price import is_checkpoint_due

AUTO = ReplanningMode.AUTO


def change(cause: SlowdownCause) -> DriftChange:
    """Return a change with that cause."""
    tables = ("item",) if cause is SlowdownCause.INPUTS_DRIFTED else ()
    evidence = (Evidence(part=StepPart.STEP, reference_ms=1.0, recent_ms=2.0),)
    return DriftChange(cause=cause, tables=tables, since_step=1, evidence=evidence)


@pytest.mark.parametrize(
    ("mode", "leaves", "keeps", "causes", "checkpoint_ms", "is_due"),
    [
        (AUTO, True, True, [SlowdownCause.INPUTS_DRIFTED], None, True),
        (AUTO, True, True, [SlowdownCause.DENSE_SLOW, SlowdownCause.NODE_SLOW], None, True),
        (AUTO, False, True, [SlowdownCause.DEVICE_SLOW], None, False),
        (AUTO, True, True, [SlowdownCause.EVERYTHING_SLOW], None, False),
        (AUTO, True, True, [], None, False),
        (AUTO, True, True, [SlowdownCause.INPUTS_DRIFTED], 0.0, False),
        (AUTO, True, False, [SlowdownCause.INPUTS_DRIFTED], None, False),
        (ReplanningMode.SUGGEST, True, True, [SlowdownCause.INPUTS_DRIFTED], None, False),
    ],
    ids=["inputs", "a node", "nodes are not left", "no restart helps", "nothing", "measured", "lost", "mode Suggest"],
)
def test_a_checkpoint_is_due_where_only_its_price_is_missing(
    mode: ReplanningMode,
    causes: list[SlowdownCause],
    checkpoint_ms: float | None,
    *,
    leaves: bool,
    keeps: bool,
    is_due: bool,
) -> None:
    """In mode Auto, for causes that a restart answers, until one was measured, if it outlives the workers."""
    changes = [change(cause) for cause in causes]

    found = is_checkpoint_due(
        mode, changes, checkpoint_ms=checkpoint_ms, avoids_slow_nodes=leaves, keeps_checkpoints=keeps
    )

    assert found is is_due
