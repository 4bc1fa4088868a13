"""Writes checkpoints while training waits, or on a thread from a copy of the state. One is in flight at most.

    training   step 8 | copy | step 9 ... step 15 | wait, copy | step 16
    thread                   | write step 8 |                  | write ...

The copy is in the host's memory (state.staging). The thread's collectives run over a
group that nothing else uses meanwhile. Where writing fails, it fails on all ranks; `has_failed` tells a rank's training
thread, and the ranks agree on the step at which all of them call `wait`.
"""

import threading
import time
from pathlib import Path

from neuroshard_trainer.ranks.tracing import traced
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest, State
from neuroshard_trainer.state.staging import Staging

MS_PER_SECOND = 1000.0


class Saver:
    """The writing of checkpoints into a folder. All ranks make one, and call ``begin`` and ``wait`` together.

    Args:
        checkpoints: the folder; in the background, its group must be used by nothing else between begin and wait.
        staging: where the state is copied, so that ``begin`` returns before it is written. None: it is written before.
    """

    def __init__(self, checkpoints: CheckpointFolder, *, staging: Staging | None) -> None:
        self._checkpoints = checkpoints
        self._staging = staging
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.newest: tuple[int, Path] | None = None
        """Step and place of the newest that is whole."""
        self.duration_ms: float | None = None
        """Of the writing of the newest. None: there is none."""
        self.stop_ms: float | None = None
        """Time that training stood still at the last ``begin``: for the one before, and for the copy or the writing.
        None: there was none."""

    @property
    def has_failed(self) -> bool:
        """Whether ``wait`` would raise at once."""
        return self._error is not None

    def begin(self, state: State, manifest: CheckpointManifest) -> None:
        """Write a checkpoint, after the one before it is whole. Raises as ``wait`` does."""
        begun = time.monotonic()
        self.wait()
        if self._staging is None:
            self._write(state, manifest)
        else:
            with traced("copy of the state"):
                staged = self._staging.copy(state)
            target = self._write_aside
            self._thread = threading.Thread(target=target, args=(self._staging, staged, manifest), daemon=True)
            self._thread.start()
        self.stop_ms = MS_PER_SECOND * (time.monotonic() - begun)

    def wait(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            StorageError: the last one could not be written; earlier ones are as they were.
            RuntimeError: another rank was lost meanwhile.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def prune(self, newest: Path) -> None:
        """Remove checkpoints that are too many, after ``wait``; the newest is known to be good. Raises StorageError."""
        self._checkpoints.prune(newest)

    def _write(self, state: State, manifest: CheckpointManifest) -> None:
        begun = time.monotonic()
        with traced("write of a checkpoint"):
            self.newest = manifest.step, self._checkpoints.save(state, manifest)
        self.duration_ms = MS_PER_SECOND * (time.monotonic() - begun)

    def _write_aside(self, staging: Staging, staged: State, manifest: CheckpointManifest) -> None:
        try:
            self._write(staged, manifest)
            staging.keep(staged)
        except BaseException as error:  # noqa: BLE001 - raised again by the training thread
            self._error = error
