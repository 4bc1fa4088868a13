"""Specification of the share of its time that a worker waits for a processor."""

import time
from pathlib import Path

import pytest
from neuroshard_trainer.measure.processor_wait import ProcessorWait


def threads(folder: Path, **schedstat: str) -> None:
    """Let Linux tell this of the threads."""
    for thread, text in schedstat.items():
        (folder / thread).mkdir(exist_ok=True)
        (folder / thread / "schedstat").write_text(f"{text}\n")


def test_waiting_is_a_share_of_all_threads_time_since_the_last_look(tmp_path: Path) -> None:
    """Threads that wait at the same time count each."""
    threads(tmp_path, main="1000 500 7", helper="0 0 1")
    wait = ProcessorWait(tmp_path)
    threads(tmp_path, main="1600 700 8", helper="0 200 2")
    first = wait.share_since_last()
    threads(tmp_path, main="2600 700 9")

    assert (first, wait.share_since_last()) == (0.4, 0.0)


def test_a_thread_that_ended_counts_no_more(tmp_path: Path) -> None:
    """What it ran would hide what the others ran since."""
    threads(tmp_path, main="0 0 1", helper="5000 0 1")
    wait = ProcessorWait(tmp_path)
    threads(tmp_path, main="900 100 2")
    (tmp_path / "helper" / "schedstat").unlink()

    assert wait.share_since_last() == 0.1


@pytest.mark.parametrize("text", ["", "1 2", "one two three"])
def test_a_system_that_does_not_count_it_gives_no_share(tmp_path: Path, text: str) -> None:
    """Other systems than Linux, and a kernel whose file has another form."""
    if text:
        threads(tmp_path, main=text)

    assert ProcessorWait(tmp_path).share_since_last() is None


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting")
def test_a_process_that_computes_knows_its_share() -> None:
    """By the real counts, whatever else runs on the machine."""
    wait = ProcessorWait()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    share = wait.share_since_last()

    assert share is not None
    assert 0 <= share < 1
