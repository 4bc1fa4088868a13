"""Several processes, planned by the drop-in."""

from pathlib import Path

import pytest
from rank_server import RankServer

FOLDER = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(400)
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
@pytest.mark.timeout(200)
def test_the_drop_in_needs_no_package_of_cluster_or_command(tmp_path: Path, ranks: RankServer) -> None:
    """A training image has TorchRec, and neither kopf, kubernetes nor typer."""
    ranks.succeed(f"{FOLDER / 'blocked_worker.py'}:main", folder=tmp_path, count=1)
