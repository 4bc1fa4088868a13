import math
from collections.abc import Sequence

import pytest
from neuroshard_api.pod.pod_api import FORBIDDEN_FOR_S, ApiUnavailableError, persistently
from neuroshard_api.process.failures import CommandError


def failing(errors: Sequence[Exception]) -> tuple[list[float], list[Exception]]:
    """Return the pauses of a call that raises these errors and then succeeds, and the errors that are left."""
    left = list(errors)
    pauses: list[float] = []

    def call() -> None:
        if left:
            raise left.pop(0)

    persistently(call, for_s=math.inf, sleep=pauses.append)
    return pauses, left


def test_pauses_grow_up_to_a_limit() -> None:
    """Many pods that lost one API server must not all come back at once."""
    pauses, left = failing([ApiUnavailableError("busy")] * 12)

    assert left == []
    assert pauses[0] <= 0.5
    assert all(7.5 <= pause <= 15.0 for pause in pauses[6:])


def test_the_api_servers_wish_is_respected() -> None:
    """It says Retry-After when it sheds load."""
    pauses, _ = failing([ApiUnavailableError("busy", retry_after_s=42.0)])

    assert pauses == [42.0]


def test_a_refusal_is_final() -> None:
    """No call is repeated that cannot succeed."""
    with pytest.raises(CommandError, match="no such ConfigMap"):
        failing([CommandError("no such ConfigMap"), ApiUnavailableError("busy")])


def test_patience_ends_sooner_where_waiting_seldom_helps() -> None:
    """A missing role is most often missing for good."""
    error = ApiUnavailableError("forbidden", retry_after_s=FORBIDDEN_FOR_S + 1, passes_within_s=FORBIDDEN_FOR_S)
    with pytest.raises(CommandError, match="forbidden; gave up after 30 s"):
        failing([error])
