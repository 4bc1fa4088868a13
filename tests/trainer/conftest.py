"""What the trainer's tests share. Warnings of torch, torchrec and their kind are not ours to mend."""

import importlib.util
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HAS_TORCHREC = importlib.util.find_spec("torchrec") is not None
collect_ignore_glob = [] if HAS_TORCHREC else ["*.py"]
if HAS_TORCHREC:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchmetrics  # noqa: F401 - warns when first imported
        import torchrec.metrics.ne  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.torchrec)
            item.add_marker(pytest.mark.filterwarnings("ignore:::(torch|torchrec|torchmetrics|fbgemm_gpu)"))


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process alone."""
    from trainer_builders import process_group_of_one

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
