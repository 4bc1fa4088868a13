"""The garbage collector around imports."""

import gc
from collections.abc import Iterator

import pytest
from neuroshard_api.process.collector import uncollected_imports


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Leave the collector as it was."""
    was_enabled, num_frozen = gc.isenabled(), gc.get_freeze_count()
    yield
    if not num_frozen:
        gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def test_the_collector_rests_during_imports_and_leaves_out_what_they_made() -> None:
    """Later collections do not walk over it."""
    gc.enable()
    with uncollected_imports():
        assert not gc.isenabled()
        made: list[object] = []

    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    assert all(each is not made for each in gc.get_objects())


def test_the_collector_works_again_after_an_import_that_failed() -> None:
    """The error is passed on."""
    gc.enable()
    with pytest.raises(ImportError, match="no such package"), uncollected_imports():
        raise ImportError("no such package")

    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    """Anyone who paused it before decides when it goes on."""
    gc.disable()
    with uncollected_imports():
        pass

    assert not gc.isenabled()
