"""What all tests share: generated cases are the same in every run, and Ctrl-C can be pressed."""

import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from neuroshard_api.process.collector import uncollected_imports
from support.trainer.rank_server import RankServer

settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts something in the background has it ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest while test modules import torch and the rest."""
    with uncollected_imports():
        return (yield)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankServer]:
    """Groups of ranks, forked from one process."""
    with RankServer() as server:
        yield server
