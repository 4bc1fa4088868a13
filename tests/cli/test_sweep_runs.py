"""Variants of a sweep as processes of this machine: devices, failures, and interruptions. Scripts take runs' places."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from io import StringIO
from pathlib import Path

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.local.sweep_results import failure_text
from neuroshard_cli.local.sweep_runs import VariantRun, train_variants
from neuroshard_report.explain.divisions import Room
from rich.console import Console
from support.processes import has_ended

NOTES = """
import json, os, sys, time
begin = time.monotonic()
time.sleep(0.3)
note = {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "begin": begin, "end": time.monotonic()}
open(sys.argv[1], "w").write(json.dumps(note))
"""


def variant(base: RunDirectory, name: str, script: str, *, devices: int = 1) -> VariantRun:
    """Return a variant whose run is a script, with a file for its note."""
    command = (sys.executable, "-c", script, str(base.path / f"{name}.json"))
    return VariantRun(name=name, command=command, directory=RunDirectory(base.path / name), num_devices=devices)


def trained(base: RunDirectory, runs: list[VariantRun], room: Room, *, gpus: tuple[str, ...] = ()) -> dict[str, int]:
    """Train variants, and return their exit statuses in the order in which they ended."""
    statuses: dict[str, int] = {}
    view = RunView(tuple(run.name for run in runs), Console(file=StringIO()))
    with base.locked(), view:
        train_variants(
            runs,
            room,
            base=base,
            view=view,
            gpus=gpus,
            root=base.path,
            ended=lambda run, status: statuses.update({run.name: status}),
        )
    return statuses


def test_variants_at_work_have_different_gpus(tmp_path: Path) -> None:
    """Of those that this process may use, and the next one begins once there are enough."""
    base = RunDirectory(tmp_path)
    runs = [variant(base, "large", NOTES, devices=2), *(variant(base, name, NOTES) for name in ("a", "b", "c"))]

    statuses = trained(base, runs, Room(num_nodes=1, devices_per_node=2), gpus=("4", "6"))

    notes = {run.name: json.loads((tmp_path / f"{run.name}.json").read_text()) for run in runs}
    assert statuses == dict.fromkeys(notes, 0)
    assert notes["large"]["gpus"] == "4,6"
    assert {notes["a"]["gpus"], notes["b"]["gpus"]} == {"4", "6"}
    assert min(notes["a"]["begin"], notes["b"]["begin"]) >= notes["large"]["end"]
    assert notes["c"]["begin"] >= min(notes["a"]["end"], notes["b"]["end"])


def test_a_variant_that_fails_stops_no_other(tmp_path: Path) -> None:
    """Its last message is kept, with its remedy."""
    base = RunDirectory(tmp_path)
    broken = "import sys; print('error: the loss is not finite'); print('hint: lower the rate'); sys.exit(10)"
    runs = [variant(base, "a", broken), variant(base, "b", NOTES), variant(base, "c", NOTES)]

    statuses = trained(base, runs, Room(num_nodes=1, devices_per_node=1))

    assert statuses == {"a": 10, "b": 0, "c": 0}
    assert failure_text(base, "a") == "the loss is not finite; hint: lower the rate"
    assert json.loads((tmp_path / "b.json").read_text())["gpus"] == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_an_interrupted_sweep_stops_its_variants_in_good_order(tmp_path: Path) -> None:
    """Each ends by itself, as for a checkpoint, before the sweep does."""
    script = textwrap.dedent("""
        import os, pathlib, signal, sys, time
        def stop(*_):
            time.sleep(0.3)
            pathlib.Path(sys.argv[1]).write_text("saved")
            sys.exit(130)
        signal.signal(signal.SIGTERM, stop)
        pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
        time.sleep(60)
    """)
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_sweep_runs import RunDirectory, Room, trained, variant
        base = RunDirectory(Path({str(tmp_path)!r}))
        runs = [variant(base, name, {script!r}) for name in "abc"]
        try:
            trained(base, runs, Room(num_nodes=1, devices_per_node=2))
        except KeyboardInterrupt:
            sys.exit(130)
    """)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    notes = [tmp_path / f"{name}.json" for name in "ab"]
    until = time.monotonic() + 60
    while not all(note.exists() and note.read_text() for note in notes):
        assert time.monotonic() < until
        time.sleep(0.05)
    pids = [int(note.read_text()) for note in notes]
    process.send_signal(signal.SIGTERM)

    assert process.wait(timeout=60) == 130
    assert [note.read_text() for note in notes] == ["saved", "saved"]
    assert all(map(has_ended, pids))
    assert not (tmp_path / "c.json").exists()
