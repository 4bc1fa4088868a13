"""What all tests share: generated cases are the same in every run, and Ctrl-C can be pressed."""

import signal
from collections.abc import Generator, Iterator
from functools import partial

import pytest
from hypothesis import is_hypothesis_test, settings
from neuroshard_api.process.collector import uncollected_imports
from support import golden as golden_files
from support.depth import depth, set_depth
from support.trainer.rank_server import RankServer

PROCESSES_END_WITHIN_S = 1200
"""A test of half a minute took five minutes next to a cluster, at a lower priority."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts something in the background has it ignore Ctrl-C, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written again."""
    golden_files.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how deep tests go before their modules are imported."""
    set_depth(is_long=bool(config.getoption("--long", default=False)))
    settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=depth(30, 100))
    settings.load_profile("deterministic")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `make test-long` run all tests of generated cases again, with more cases, and keep ranks out of `make test`.

    Tests that start processes get a limit that fits a busy machine.

    Raises:
        UsageError: A test that starts ranks has not the mark by which `make test` leaves it out.
    """
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", ())  # a test's own argument may have that name
        takes_ranks = "ranks" in getattr(item, "fixturenames", ()) and "ranks" not in values
        if takes_ranks and not item.get_closest_marker("processes"):
            raise pytest.UsageError(f"{item.nodeid} starts ranks\nhint: mark it processes")
        if item.get_closest_marker("processes") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROCESSES_END_WITHIN_S))
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.deep)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> golden_files.Golden:
    """Return a function that compares a golden file with a text."""
    return partial(golden_files.compare, rewrite=bool(request.config.getoption(golden_files.OPTION)))


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
