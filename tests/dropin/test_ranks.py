"""Several processes under torchrun, planned by the drop-in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [2, 4])
def test_a_model_trains_under_the_drop_ins_plan_as_under_torchrecs(count: int) -> None:
    """All ranks get one plan, logits of two steps are equal, and an error of one rank is the error of all."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    found = subprocess.run(
        [*torchrun, str(Path(__file__).with_name("ranks_worker.py"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )

    assert found.returncode == 0, found.stderr[-3000:]
