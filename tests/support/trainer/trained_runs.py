"""What a run of the small training job leaves in its folder."""

from collections.abc import Callable
from pathlib import Path

from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.state.checkpoint import CheckpointManifest

Run = Callable[..., ExitCode]
WHOLE = 22
"""Steps of the small job: 360 training samples by 16."""


def progress(folder: Path) -> TrainingProgress:
    """Return the progress of a run."""
    return TrainingProgress.read(folder / "progress.json")


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def weights_hash(folder: Path, step: int = WHOLE) -> dict[str, str]:
    """Return the hashes of a checkpoint's tensors."""
    manifest = CheckpointManifest.read(folder / "checkpoints" / f"step-{step:08d}" / "checkpoint.json")
    return {name: digest for name, digest in manifest.files.items() if name != ".metadata"}


def checkpoint_of(folder: Path, step: int) -> dict[str, bytes]:
    """Return the files of a checkpoint."""
    found = folder / "checkpoints" / f"step-{step:08d}"
    return {path.name: path.read_bytes() for path in found.iterdir()}
