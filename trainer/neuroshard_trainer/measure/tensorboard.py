"""Loss and metrics of a training as TensorBoard's events, written by rank 0. Needs the package tensorboard."""

from collections.abc import Callable, Mapping
from pathlib import Path

from neuroshard_api.process.errors import MissingPackageError

from neuroshard_trainer.files import storage_error

Show = Callable[[int, Mapping[str, float]], None]
"""Takes a step and values by name."""


def tensorboard_writer(folder: Path, *, first_step: int) -> Show:
    """Open the folder of events, and return what writes values into it; each call is on the disk when it returns.

    Args:
        folder: is made if need be; events of earlier starts of the run stay.
        first_step: steps done; events of later steps, which an interrupted start left, are hidden.

    Raises:
        MissingPackageError: tensorboard is not installed.
        StorageError: the folder cannot be written, also from the function that is returned.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingPackageError(
            f"spec.training.tensorboard needs tensorboard ({error}); hint: `pip install tensorboard`"
        ) from error
    try:
        writer = SummaryWriter(str(folder), purge_step=first_step + 1)
    except OSError as error:
        raise storage_error(folder, error) from error

    def show(step: int, values: Mapping[str, float]) -> None:
        try:
            for name, value in values.items():
                writer.add_scalar(name, value, step)
            writer.flush()
        except OSError as error:
            raise storage_error(folder, error) from error

    return show


def show_nothing(_step: int, _values: Mapping[str, float]) -> None:
    """Write nothing."""
