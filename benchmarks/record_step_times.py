"""Record step times of the trainer on two processes: as it is, next to other programs, and with a planted slow-down.

OMP_NUM_THREADS=1 python -m benchmarks.record_step_times

Writes benchmarks/data/recorded_step_times.json.gz: of each series the steps, what was done and from which step on, and
the machine's load. A step is as long as the slower rank's, by the clock, reporter and drift watch included.
"""

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.measure.step_reporter import StepReporter

from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, measured_blocks
from benchmarks.results_file import cpu_model
from benchmarks.sharded_training import MIXED, ShardedTraining, batches, start_process

DATA_FILE: Final = Path(__file__).parent / "data" / "recorded_step_times.json.gz"
SAMPLES: Final = 256
WARM_UP: Final = 50
STEPS: Final = 3000
CHANGE_STEP: Final = 1500
PLANTED_SHARE: Final = 0.1
"""Of the median step before the change: rank 1 computes for so long at the end of each step."""
METHOD: Final = (
    f"Two processes over gloo train {len(MIXED.tables)} tables with {SAMPLES} samples each, each process on a core of "
    "its own with one thread. Other programs run on the machine; load averages are those of the last minute, at begin "
    "and end. A neighbour is a process on rank 0's core: steady computes all the time, bursts compute 1 s of each 4 s."
)
STEADY: Final = "while True: sum(each * each for each in range(10_000))"
BURSTS: Final = """import time
while True:
    until = time.monotonic() + 1
    while time.monotonic() < until: sum(each * each for each in range(10_000))
    time.sleep(3)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is done to a training."""

    name: str
    neighbour: str | None = None
    """Python that another process runs. None: there is none."""
    begins: int = CHANGE_STEP
    """Step from which on something is done."""
    planted: float = 0.0
    """Share of a step that is added."""
    is_change: bool = True
    """Whether steps are lastingly slower from then on."""


SCENARIOS: Final = (
    Scenario(name="nothing planted", is_change=False),
    Scenario(name="neighbour in bursts", neighbour=BURSTS, begins=0, is_change=False),
    Scenario(name="planted x1.10", planted=PLANTED_SHARE),
    Scenario(name="steady neighbour", neighbour=STEADY),
)


@contextmanager
def neighbour(code: str) -> Iterator[None]:
    """Run a process of this process's core meanwhile."""
    other = subprocess.Popen([sys.executable, "-c", code])  # noqa: S603
    try:
        yield
    finally:
        other.terminate()
        other.wait()


class Training:
    """The training of one rank, with the reporter and what it writes."""

    def __init__(self, folder: Path) -> None:
        self._training = ShardedTraining(Plan.read(folder / PLAN_FILE))
        self._batches = batches(SAMPLES)
        reporter = StepReporter(self._training.model, folder / PLAN_FILE, write=folder / "step-report.json")
        self._given: list[Batch] = []
        self._reported = reporter.steps(iter(self._given.pop, None))
        self._reporter = reporter
        self._count = 0
        self._median_ms = 0.0

    def step(self, extra_ms: float) -> float:
        """Train on the next batch and compute for some time more; return the milliseconds."""
        begun = time.perf_counter()
        self._given.append(self._batches[self._count % len(self._batches)])
        self._count += 1
        self._training.step(next(self._reported))
        until = time.perf_counter() + extra_ms / 1000
        while extra_ms and time.perf_counter() < until:
            pass
        self._reporter.end_step()
        return 1000 * (time.perf_counter() - begun)

    def steps(self, count: int, *, planted: float = 0.0) -> list[float]:
        """Return the times of steps of which some are longer by a share of the median of those before."""
        extra_ms = planted * self._median_ms if dist.get_rank() == 1 else 0.0
        times = [self.step(extra_ms) for _ in range(count)]
        self._median_ms = float(np.median(times))
        return times


def record(training: Training, scenario: Scenario) -> dict[str, Any]:
    """Return one series with its labels."""
    load = os.getloadavg()[0]
    training.steps(WARM_UP)
    dist.barrier()
    own = training.steps(scenario.begins) if scenario.begins else []
    if scenario.neighbour is not None and dist.get_rank() == 0:
        with neighbour(scenario.neighbour):
            own = own + training.steps(STEPS - scenario.begins)
    else:
        own = own + training.steps(STEPS - scenario.begins, planted=scenario.planted)
    everyone: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    step_ms = np.max(everyone, axis=0)
    return {
        **{key: value for key, value in asdict(scenario).items() if key != "neighbour"},
        "load": [round(each, 1) for each in (load, os.getloadavg()[0])],
        "step_ms": [round(float(each), 2) for each in step_ms],
    }


def train(folder: Path) -> None:
    """Record all series on one of the processes."""
    start_process()
    training = Training(folder)
    series = [record(training, scenario) for scenario in SCENARIOS]
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(series))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Record and write the file; or, given a folder, be one of the processes that train."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    found = {
        "method": METHOD,
        "machine": f"{cpu_model()}, {os.cpu_count()} cores",
        "date": datetime.now(tz=UTC).date().isoformat(),
        "series": measured_blocks(Path(__file__), MIXED),
    }
    DATA_FILE.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))
    for each in found["series"]:
        before, since = (np.median(part) for part in np.split(np.array(each["step_ms"]), [CHANGE_STEP]))
        print(f"{each['name']}: load {each['load']}, median {before:.2f} ms, then {since:.2f} ms")


if __name__ == "__main__":
    main()
