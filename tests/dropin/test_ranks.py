"""Several processes, planned by the drop-in."""

import re
from pathlib import Path

import pytest
from support.trainer.rank_server import RankServer

pytestmark = pytest.mark.processes

FOLDER = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_models_train_under_the_drop_ins_plans_as_under_torchrecs(
    tmp_path: Path, ranks: RankServer, count: int
) -> None:
    """Two towers, and TorchRec's own test models with weighted bags, feature processors, and sequences.

    All ranks get one plan, in which a table is cut; logits of two steps and all weights after them are equal; an error
    of one rank is the error of all.
    """
    ranks.succeed(f"{FOLDER / 'ranks_worker.py'}:main", folder=tmp_path, count=count)


@pytest.mark.slow
def test_the_drop_in_needs_no_package_of_cluster_or_command(tmp_path: Path, ranks: RankServer) -> None:
    """A training image has TorchRec, and neither kopf, kubernetes nor typer."""
    ranks.succeed(f"{FOLDER / 'blocked_worker.py'}:main", folder=tmp_path, count=1)


@pytest.mark.slow
def test_the_example_with_one_line_changed_runs_and_prints_what_the_guide_shows(
    tmp_path: Path, ranks: RankServer
) -> None:
    """Line by line, but for the numbers and places, which change with cost models and search."""
    root = FOLDER.parents[1]
    script = root / "examples" / "torchrec" / "one_line.py"
    printed = ranks.succeed("support.trainer.rank_server:run_script", script, folder=tmp_path, count=2).splitlines()
    guide = (root / "docs" / "guides" / "use-with-torchrec.md").read_text(encoding="utf-8")
    shown = guide.partition("```text\n")[2].partition("```")[0].splitlines()

    assert len(shown) == 7
    assert [kind for line in printed if (kind := kind_of(line)) in {kind_of(each) for each in shown}] == [
        kind_of(line) for line in shown
    ]


def kind_of(line: str) -> str:
    """Return a line without its numbers, and without what follows a colon."""
    return re.sub(r"\(.*\)|[\d.]+", "N", line.partition(":")[0])
