"""The page of a local run at its end, however it ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.run_page import LivePage
from neuroshard_cli.local.stage_runner import StageFailedError
from support.cli.local_life import OWN, LocalLife, local_life
from support.cli.local_runs import made_plan

UNDER_WAY = "The run is under way"
WRITE = LivePage.write
"""Which lives whose plans are made up have no use for."""


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLife]:
    """A run that trains, and whose page says so."""
    with local_life(tmp_path, trainer=OWN, failurePolicy={"maxRestarts": 0}) as made, made.directory.locked():
        monkeypatch.setattr(LivePage, "write", WRITE)
        made.begin(given=made_plan(tmp_path))
        made.ready()
        made.report(is_slow=False)
        made.local._page.write()
        assert UNDER_WAY in page_of(made)
        yield made


def page_of(life: LocalLife) -> str:
    """Return the page as it was written last."""
    return life.directory.run_report.read_text(encoding="utf-8")


def test_the_page_of_an_interrupted_run_is_not_under_way(life: LocalLife) -> None:
    """A browser that shows it does not load it again."""
    with pytest.raises(KeyboardInterrupt), life.local._ending():
        raise KeyboardInterrupt

    assert UNDER_WAY not in page_of(life)
    assert ", interrupted</span>" in page_of(life)


def test_the_page_of_a_failed_run_says_why(life: LocalLife) -> None:
    """In its first screen, with the sentence that ends the command."""
    life.end("train", 1, "error: no space is left")
    with pytest.raises(StageFailedError), life.local._ending():
        life.local._require_success()

    assert UNDER_WAY not in page_of(life)
    assert "no space is left" in page_of(life).partition("</header>")[0]


def test_a_fault_of_the_page_leaves_the_run_alone(life: LocalLife, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last version raises it, when nothing can be lost."""

    def faulty(_directory: RunDirectory) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("neuroshard_cli.local.run_page.run_page", faulty)

    life.local._page.write()

    assert UNDER_WAY in page_of(life)
