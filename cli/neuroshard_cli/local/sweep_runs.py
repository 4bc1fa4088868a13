"""Variants of a sweep trained on this machine: a ``neuroshard run`` for each, as many at a time as devices are free.

Each variant has a run directory, so that the same sweep resumes each where it stopped, and repeats none that is done.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_report.explain.divisions import FreeDevices, Room

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.measured import progress_in
from neuroshard_cli.local.progress_view import RunView, State
from neuroshard_cli.local.stage_process import MARK_VARIABLE, end_marked, stoppable
from neuroshard_cli.local.stage_runner import last_line, progress_line
from neuroshard_cli.local.sweep_results import failure_text

LOOK_EVERY_S = 0.2
NEUROSHARD = (sys.executable, "-c", "from neuroshard_cli.main import main; main()")
"""This command, also where it is not on the PATH."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantRun:
    """One variant to train."""

    name: str
    command: tuple[str, ...]
    directory: RunDirectory
    """Of its run."""
    num_devices: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Training:
    run: VariantRun
    process: subprocess.Popen[bytes]
    devices: tuple[int, ...]


def train_variants(
    runs: Sequence[VariantRun],
    room: Room,
    *,
    base: RunDirectory,
    view: RunView,
    gpus: Sequence[str],
    root: Path,
    ended: Callable[[VariantRun, int], None],
) -> None:
    """Train variants in their order; each begins as soon as its devices are free, whatever became of those before.

    Args:
        runs: variants in the order in which they begin.
        room: devices of this machine.
        base: folder of the sweep's runs; locked by the caller.
        view: has a line for each variant.
        gpus: identities of the GPUs, in the order of the devices. Empty: variants train on the CPU.
        root: folder that the runs are started in, which has their data.
        ended: called with each variant and its exit status.

    Raises:
        KeyboardInterrupt: this process was asked to stop; the variants have stopped in good order.
    """
    end_marked(str(base.path))
    free, waiting, training = FreeDevices(room), list(runs), list[_Training]()
    with stoppable({}):
        try:
            while waiting or training:
                while waiting and (devices := free.take(waiting[0].num_devices)) is not None:
                    run = waiting.pop(0)
                    view.begin(run.name, f"on {len(devices)} of {room.num_devices} devices")
                    training.append(_started(run, devices, base=base, gpus=gpus, root=root))
                time.sleep(LOOK_EVERY_S)
                for each in [each for each in training if each.process.poll() is not None]:
                    training.remove(each)
                    free.give_back(each.devices)
                    _show_end(each, view, base)
                    ended(each.run, each.process.returncode)
                for each in training:
                    view.note(each.run.name, _newest(each.run, base))
        finally:
            _stop(training)


def _started(
    run: VariantRun, devices: tuple[int, ...], *, base: RunDirectory, gpus: Sequence[str], root: Path
) -> _Training:
    visible: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[each] for each in devices)} if gpus else {}
    with base.log(run.name).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - this command
            run.command,
            cwd=root,
            env={**os.environ, **visible, MARK_VARIABLE: str(base.path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops each in good order
        )
    return _Training(run=run, process=process, devices=devices)


def _show_end(training: _Training, view: RunView, base: RunDirectory) -> None:
    name, status = training.run.name, training.process.returncode
    states: Mapping[int, State] = {ExitCode.OK: "done", ExitCode.INTERRUPTED: "stopped"}
    state = states.get(status, "failed")
    view.end(name, state, _newest(training.run, base) if status == ExitCode.OK else failure_text(base, name))


def _newest(run: VariantRun, base: RunDirectory) -> str:
    progress = progress_in(run.directory)
    return last_line(base.log(run.name)) if progress is None else progress_line(progress)


def _stop(training: Sequence[_Training]) -> None:
    """Ask runs to stop, and wait for their checkpoints; a second Ctrl-C asks again, upon which they wait no longer."""
    for each in training:
        each.process.terminate()
    for each in training:
        while True:
            try:
                each.process.wait()
            except KeyboardInterrupt:
                for other in training:
                    other.process.terminate()
            else:
                break
