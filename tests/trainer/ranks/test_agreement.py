"""A vote of ranks: what one of them cannot do is an error of all."""

import json
from pathlib import Path

import pytest
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("agreement_worker.py")


@pytest.mark.processes
def test_a_file_that_one_rank_cannot_read_is_an_error_of_all(tmp_path: Path, ranks: RankServer) -> None:
    """No rank is left in the collective: each raises, and the others name the rank."""
    ranks.succeed(f"{WORKER}:main", tmp_path, folder=tmp_path, count=4)

    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    expected = {
        "OSError": "no such disk",
        "DocumentError": "plan.json: no such field",
        "InputError": "no such table",
    }
    assert found[2] == expected
    for rank in (0, 1, 3):
        assert found[rank] == {kind: f"rank 2: {message}" for kind, message in expected.items()}
