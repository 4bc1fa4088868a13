"""What the trainer's tests share."""

import importlib.util
import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.trainer.torchrec_marks import mark_torchrec

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["*.py"]
if HAS_TORCHREC:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrec  # noqa: F401 - warns when first imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    mark_torchrec(items, Path(__file__).parent)


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    from support.trainer.trainer_builders import process_group_of_one

    with process_group_of_one() as alone:
        yield alone


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mount = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("this machine mounts no file systems")
    yield folder
    subprocess.run(["/bin/umount", folder], check=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Train a job in ``run`` below the test's folder; keyword arguments change its spec."""
    import torch.distributed as dist
    from neuroshard_trainer.__main__ import main
    from support.trainer.trainer_builders import ALONE, job_data, plan_of, write_job, write_plan

    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    write_plan(tmp_path, plan_of())

    def train(*options: str, run_dir: str = "run", **spec: Any) -> Any:
        job = write_job(tmp_path, job_data(**spec))
        places = ["--plan", str(tmp_path / "plan.json"), "--run-dir", str(tmp_path / run_dir)]
        try:
            return main([str(job), *places, *options])
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    return train
