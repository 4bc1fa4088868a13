"""What becomes of freed memory."""

import subprocess
import sys

import pytest
from neuroshard_api.process.host_memory import keep_freed_memory

FAULTS_OF_REPEATED_ALLOCATIONS = """
import resource, sys
from neuroshard_api.process.host_memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    bytearray(64 << 20)[:: 4096] = bytes(16384)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Return the page faults of a process that allocates and frees 64 MiB twenty times."""
    command = [sys.executable, "-c", FAULTS_OF_REPEATED_ALLOCATIONS, how]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="the setting is glibc's")
def test_memory_that_was_freed_is_not_paid_for_twice() -> None:
    """The pages of a block are touched for the first time once, not once in each of twenty allocations."""
    assert faults("keep") * 5 < faults("return")


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without glibc's setting the answer is no, and nothing fails."""
    monkeypatch.setattr("ctypes.CDLL", lambda _name: object())
    assert not keep_freed_memory()
