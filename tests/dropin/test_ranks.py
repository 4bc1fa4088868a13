"""Several processes, planned by the drop-in."""

from pathlib import Path

import pytest
from rank_server import RankServer

WORKER = Path(__file__).with_name("ranks_worker.py")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [2, 4])
def test_a_model_trains_under_the_drop_ins_plan_as_under_torchrecs(
    tmp_path: Path, ranks: RankServer, count: int
) -> None:
    """All ranks get one plan, logits of two steps are equal, and an error of one rank is the error of all."""
    ranks.succeed(f"{WORKER}:main", folder=tmp_path, count=count)
