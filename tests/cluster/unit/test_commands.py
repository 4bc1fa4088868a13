from pathlib import Path

import pytest
from neuroshard_cluster.commands import run
from neuroshard_cluster.errors import HostError


def test_a_program_that_is_missing_is_named() -> None:
    """A machine without kubectl or iptables gets a sentence, not a traceback."""
    with pytest.raises(HostError, match=r"there is no program no-such-program\nhint: install it"):
        run(["no-such-program", "get"])


def test_a_missing_file_to_read_is_not_taken_for_a_missing_program(tmp_path: Path) -> None:
    """Each has a cause of its own."""
    with pytest.raises(FileNotFoundError, match="archive"):
        run(["cat"], stdin=tmp_path / "archive.tar")
    with pytest.raises(FileNotFoundError, match="folder"):
        run(["cat"], cwd=tmp_path / "folder")
