"""Estimates: how the processes that plan are started."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from neuroshard_dlrm.device_counts import THREADS_VARIABLE, one_thread_each


@pytest.mark.parametrize(("chosen", "expected"), [(None, "1"), ("3", "3")], ids=["by default", "as the user has it"])
def test_processes_that_plan_have_one_thread_each(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, expected: str
) -> None:
    """There are as many of them as cores; this process keeps its own number."""
    if chosen is None:
        monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(THREADS_VARIABLE, chosen)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with one_thread_each():
            found = pool.submit(os.getenv, THREADS_VARIABLE)
        threads = found.result()

    assert (threads, os.environ.get(THREADS_VARIABLE)) == (expected, chosen)
