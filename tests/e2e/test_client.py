"""The command `neuroshard` against a real cluster where there is no job; `test_happy_path` has it with one."""

import pytest
from e2e.client import neuroshard
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]


def test_a_job_that_is_not_there_is_named_in_a_sentence(namespace: Namespace) -> None:
    """No traceback, and the exit code of bad input."""
    with pytest.raises(CommandError, match=r"exited with 2: error: .*\"gone\" not found"):
        neuroshard(namespace, "status", "gone")
