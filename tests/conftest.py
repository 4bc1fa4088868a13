"""What all tests share: generated cases are the same in every run, and Ctrl-C can be pressed."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from rank_server import RankServer

settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts something in the background has it ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # while test modules import torch and the rest


def pytest_collection_finish() -> None:
    """Leave what collecting has made out of the collector's passes during the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankServer]:
    """Groups of ranks, forked from one process."""
    with RankServer() as server:
        yield server
