"""How far predicted times can be trusted, and against what."""

import pytest
from neuroshard_report.explain.trust import trust_text
from support.builders import plan


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (
            (None, None),
            "3.0 %, communication 2.0 % against the simulator only; the error on a real device is not known",
        ),
        (
            (0.05, None),
            "5.0 %, communication 2.0 % on held-out measurements, of communication against the simulator only",
        ),
        ((0.05, 0.1), "5.0 %, communication 10.0 % on held-out measurements"),
    ],
    ids=["simulated", "compute measured", "both measured"],
)
def test_the_error_against_reality_is_shown_where_it_is_known(
    measured: tuple[float | None, float | None], expected: str
) -> None:
    """An error against the simulator is never shown without saying so."""
    compute, communication = measured
    update = {"measured_compute_mape": compute, "measured_communication_mape": communication}

    assert trust_text(plan().bundle.model_copy(update=update)) == f"compute {expected}"
