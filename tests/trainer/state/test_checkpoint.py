"""Checkpoint folders, and disks that are full."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.process.errors import StorageError
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from torch.distributed.checkpoint import state_dict_saver

MIB = 2**20


def manifest(step: int) -> CheckpointManifest:
    """Return the manifest of a checkpoint."""
    return CheckpointManifest(
        step=step, position=16 * step, world_size=1, plan_sha256="0" * 64, table_widths={"t": (4,)}, signature={}
    )


def steps(folder: Path) -> list[str]:
    """Return the files of the folder, but for the one that names its owner."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".owner")


def test_a_state_comes_back(tmp_path: Path, group: Any) -> None:
    """Into the tensors that are there."""
    checkpoints = CheckpointFolder(tmp_path / "new" / "checkpoints", keep=2, group=group)
    checkpoints.prepare()
    checkpoints.save({"model": {"w": torch.arange(5.0)}}, manifest(7))
    live = torch.zeros(5)

    ((folder, found),) = checkpoints.whole()
    checkpoints.load(folder, {"model": {"w": live}})

    assert live.tolist() == [0, 1, 2, 3, 4]
    assert (found.step, found.position) == (7, 112)


def test_the_newest_are_kept(tmp_path: Path, group: Any) -> None:
    """And the one before them until the newest is known to be good."""
    checkpoints = CheckpointFolder(tmp_path, keep=2, group=group)
    for step in (2, 5, 10):
        checkpoints.save({"w": torch.ones(1)}, manifest(step))
    newest = checkpoints.save({"w": torch.ones(1)}, manifest(100))
    assert steps(tmp_path) == ["step-00000005", "step-00000010", "step-00000100"]

    checkpoints.prune(newest)

    assert steps(tmp_path) == ["step-00000010", "step-00000100"]
    assert [found.step for _, found in checkpoints.whole()] == [100, 10]


def test_a_damaged_checkpoint_of_a_later_step_is_not_kept_instead(tmp_path: Path, group: Any) -> None:
    """A run that went on from the one before the damaged one keeps what it writes."""
    checkpoints = CheckpointFolder(tmp_path, keep=1, group=group)
    (tmp_path / "step-00000016").mkdir()

    for step in (8, 12):
        checkpoints.prune(checkpoints.save({"w": torch.ones(1)}, manifest(step)))

    assert [found.step for _, found in checkpoints.whole()] == [12]


def test_a_superseded_start_removes_no_checkpoint(tmp_path: Path, group: Any) -> None:
    """Although its own training has succeeded."""
    lost = CheckpointFolder(tmp_path, keep=1, group=group)
    lost.prepare()
    lost.save({"w": torch.ones(1)}, manifest(1))
    newest = lost.save({"w": torch.ones(1)}, manifest(2))
    CheckpointFolder(tmp_path, keep=1, group=group).prepare()

    lost.prune(newest)

    assert steps(tmp_path) == ["step-00000001", "step-00000002"]


def test_a_checkpoint_that_does_not_fit_is_not_begun(small_disk: Path, group: Any) -> None:
    """The sentence has both numbers; the earlier checkpoint stays."""
    checkpoints = CheckpointFolder(small_disk, keep=1, group=group)
    checkpoints.save({"w": torch.ones(10)}, manifest(1))

    with pytest.raises(StorageError, match=r"checkpoint needs 8388608 bytes, \d+ are free; hint: free space"):
        checkpoints.save({"w": torch.ones(2 * MIB)}, manifest(2))

    assert steps(small_disk) == ["step-00000001"]


def test_a_disk_that_fills_up_meanwhile_is_a_sentence_too(
    small_disk: Path, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of the checkpoint is removed, so that the space is free again."""
    checkpoints = CheckpointFolder(small_disk, keep=1, group=group)
    checkpoints.save({"w": torch.ones(10)}, manifest(1))
    real = shutil.disk_usage
    answers = iter([shutil._ntuple_diskusage(2**40, 0, 2**40)])  # first there seems to be room
    monkeypatch.setattr(shutil, "disk_usage", lambda path: next(answers, None) or real(path))

    with pytest.raises(StorageError, match="the disk is full"):
        checkpoints.save({"w": torch.ones(2 * MIB)}, manifest(2))

    assert steps(small_disk) == ["step-00000001"]
    assert real(small_disk).free > 3 * MIB


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path, group: Any) -> None:
    """It names the folder."""
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="checkpoints: cannot be written: Not a directory"):
        CheckpointFolder(tmp_path / "file" / "checkpoints", keep=1, group=group).prepare()


def test_a_start_that_was_superseded_writes_no_checkpoint(tmp_path: Path, group: Any) -> None:
    """A pod on a node that the cluster lost sight of trains on while the next attempt trains too."""
    lost = CheckpointFolder(tmp_path, keep=1, group=group)
    lost.prepare()
    lost.save({"w": torch.ones(1)}, manifest(1))
    current = CheckpointFolder(tmp_path, keep=1, group=group)
    current.prepare()
    current.prune(current.save({"w": torch.full((1,), 2.0)}, manifest(2)))
    for step in (2, 3):
        with pytest.raises(StorageError, match="a newer start of this run has taken over"):
            lost.save({"w": torch.zeros(1)}, manifest(step))

    assert steps(tmp_path) == ["step-00000002"]
    live = torch.zeros(1)
    ((folder, _),) = current.whole()
    current.load(folder, {"w": live})
    assert live.tolist() == [2]


def test_a_start_that_is_superseded_while_it_writes_completes_nothing(
    tmp_path: Path, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner is looked at again before the rename that makes a checkpoint whole."""
    lost = CheckpointFolder(tmp_path, keep=1, group=group)
    lost.prepare()
    save = state_dict_saver.save

    def saved(*args: Any, **kwargs: Any) -> Any:
        done = save(*args, **kwargs)
        (tmp_path / ".owner").write_text("another start")
        return done

    monkeypatch.setattr(state_dict_saver, "save", saved)
    with pytest.raises(StorageError, match="a newer start of this run has taken over"):
        lost.save({"w": torch.ones(1)}, manifest(1))

    assert list(lost.whole()) == []
