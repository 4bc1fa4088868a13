"""Samples per second of dense parts at limits of memory: the planner's own layouts next to uniform ones of FSDP.

    python -m benchmarks.dense_throughput PROFILE                       # all of it
    python -m benchmarks.dense_throughput PROFILE deep --times 1        # one model, each layout once
    python -m benchmarks.dense_throughput PROFILE --kept runs.jsonl --minutes 20    # again till all are
    python -m benchmarks.dense_throughput PROFILE --kept runs.jsonl --times 0       # the result alone

PROFILE is what `neuroshard profile` wrote on this machine. Models have about 100 million parameters in their dense
part, and small tables. At each limit the planner is asked for four layouts: its own (`policy: Auto`), replicas (DDP),
and all units ZeRO-2 or ZeRO-3, without checkpointing, as `fully_shard` is mostly used. A layout that fits is trained by
two processes over gloo with Adam, at the least of the limits at which it is planned; its time does not depend on the
limit. One that is refused is trained nevertheless at the highest limit at which it is refused, and has to fail there.
The layouts of a model are trained by the same two processes, one after the other, each once before any is trained
again; those that have to fail have processes of their own.

The kernel holds the limit: a process may have as much private memory (RLIMIT_DATA) as it has where a training begins,
and the limit. What was planned may have 256 MiB more for what no ledger counts: stacks of threads, arenas, and buffers
of gloo. What is freed goes back to the kernel, which costs sharded layouts more than in training, where it is kept.
A run is kept in a file, and the result has all of that file: a call adds those that are missing.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DensePolicy,
    DenseStrategy,
    SplittingChoice,
    UnitChoice,
)
from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import GivenPlan, Plan, any_plan
from neuroshard_api.documents.request import Algorithm, MemorySettings, PlanRequest
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_costs.bundle import CostBundle, load_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan as search
from neuroshard_trainer.job_file import read_job

from benchmarks.allocated_memory import batches_of, planned_training
from benchmarks.dense_memory_error import PARTS, TABLES
from benchmarks.first_runs import commit
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE, torchrun
from benchmarks.trained_memory import counted_request, training_job

KEPT = Path(__file__).parent.parent / "build" / "dense-throughput.jsonl"
BATCH = 64
MODELS: Mapping[str, Mapping[str, Any]] = {
    "wide": {"batchSizePerDevice": BATCH, "overArchLayerSizes": [8192, 8192, 4096]},
    "deep": {"batchSizePerDevice": BATCH, "overArchLayerSizes": [2048] * 25},
    "mixed": {
        "architecture": "DCNv2",
        "batchSizePerDevice": BATCH,
        "crossNetwork": {"numLayers": 4, "lowRankDim": 2048},
        "overArchLayerSizes": [8192, 4096, 4096, 2048, 2048, 2048, *[1024] * 20],
    },
}
"""Few large layers, many equal ones, and both next to a cross network, as in the paper's three kinds of models."""
NUM_LIMITS = 5
ROOM = 1.02
"""Of the highest limit over what replicas need, and of the lowest over the least of the uniform layouts."""
AUTO = "Auto"
LAYOUTS: Mapping[str, DenseChoices] = {
    AUTO: DenseChoices(),
    "DDP": DenseChoices(policy=DensePolicy.REPLICATE, checkpointing=CheckpointingChoice.NEVER),
    **{
        name: DenseChoices(
            policy=DensePolicy.REPLICATE,
            checkpointing=CheckpointingChoice.NEVER,
            splitting=SplittingChoice.NEVER,
            units=tuple(UnitChoice(module=part, strategy=strategy) for part in PARTS),
        )
        for name, strategy in (("ZeRO-2", DenseStrategy.ZERO2), ("ZeRO-3", DenseStrategy.ZERO3))
    },
}
MARGIN_BYTES = 256 * 2**20
MIB = 2**20
STEPS = 6
WARM_UP_STEPS = 2
TIMEOUT_SECONDS = 900
FULL = "can't allocate memory"
"""What torch says where the kernel refuses memory."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
"""One thread, and large pages for torch: blocks go back to the kernel, and sharded units take new ones in each step."""
M_MMAP_THRESHOLD = -3
"""mallopt's number in glibc's malloc.h."""
PAPER = """Published by the authors of OSDP (IJCAI 2023, the README of their repository), on RTX TITAN over PCIe 3 with
fairscale: GPT-2 under 8 GB 192 sequences/s next to FSDP's 158 (1.22 x), OPT of 8 layers under 16 GB 1,262 next to 453
(2.8 x)."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A layout to train under a limit."""

    plan: Plan
    layout: str
    """Digest of the plan's layout."""
    limit_bytes: int
    margin_bytes: int
    """What it may have besides."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of a layout under a limit."""

    model: str
    layout: str
    """Digest of the plan's layout."""
    limit_bytes: int
    commit: str
    step_seconds: Sequence[float]
    """By the clock, of rank 0; none where it failed."""
    processor_seconds: Sequence[float]
    """Of the same steps, of both processes together."""
    failure: str | None
    """Last words of a process. None: it has trained."""
    load: float

    @property
    def samples_per_second(self) -> float:
        """Of both processes, by the median step."""
        return WORLD_SIZE * BATCH / median(self.step_seconds)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One layout that the planner was asked for at one limit."""

    model: str
    name: str
    limit_bytes: int
    plan: Plan | None
    problem: str | None
    """The planner's sentence. None: there is a plan."""

    @property
    def layout(self) -> str:
        """A digest of the layout; equal ones train equally."""
        assert self.plan is not None, "it is asked of plans"
        dense = None if self.plan.dense is None else [each.model_dump_json() for each in self.plan.dense.units]
        return hashlib.sha256(json.dumps(dense).encode()).hexdigest()[:12]


class Model:
    """One model: its job, its limits, and what the planner says at each."""

    def __init__(self, name: str, hardware: Hardware, bundle: CostBundle) -> None:
        self.name = name
        self.job: DLRMTrainingJob = training_job(TABLES, MODELS[name], where=name)
        self._topology = hardware.topology(num_nodes=1, devices_per_node=WORLD_SIZE)
        self._bundle = bundle

    @cached_property
    def counted(self) -> PlanRequest:
        """Its request on this machine, without a limit."""
        found = counted_request(self.job)
        return found.model_copy(
            update={
                "topology": self._topology,
                "algorithm": Algorithm.SIZE_GREEDY,
                "memory": MemorySettings(reserve_fraction=0.0),
            }
        )

    @cached_property
    def unlimited(self) -> Mapping[str, Plan]:
        """Plans of the uniform layouts where memory does not bind."""
        return {name: self._plan(choices, 2**40) for name, choices in LAYOUTS.items() if name != AUTO}

    @cached_property
    def limits(self) -> tuple[int, ...]:
        """Bytes of a device, falling."""
        needed = [max(each.used_bytes for each in plan.memory) for plan in self.unlimited.values()]
        step = (max(needed) - min(needed)) / (NUM_LIMITS - 1)
        return tuple(int(ROOM * (max(needed) - number * step)) for number in range(NUM_LIMITS))

    @cached_property
    def asked(self) -> tuple[Asked, ...]:
        """All layouts at all limits."""
        return tuple(self._ask(name, limit) for limit in self.limits for name in LAYOUTS)

    def planned(self) -> Iterator[Training]:
        """Yield the layouts that fit by the planner, each under the least of its limits."""
        fits = [each for each in self.asked if each.plan is not None]
        for layout in dict.fromkeys(each.layout for each in fits):
            least = min((each for each in fits if each.layout == layout), key=lambda each: each.limit_bytes)
            assert least.plan is not None
            yield Training(plan=least.plan, layout=layout, limit_bytes=least.limit_bytes, margin_bytes=MARGIN_BYTES)

    def refused(self) -> Iterator[tuple[str, Training]]:
        """Yield the uniform layouts that some limit refuses, by name; they have to fail."""
        for name, plan in self.unlimited.items():
            refused = [each.limit_bytes for each in self.asked if each.name == name and each.plan is None]
            if refused:
                layout = Asked(model=self.name, name=name, limit_bytes=0, plan=plan, problem=None).layout
                yield name, Training(plan=plan, layout=layout, limit_bytes=max(refused), margin_bytes=0)

    def _ask(self, name: str, limit: int) -> Asked:
        try:
            plan = self._plan(LAYOUTS[name], limit)
        except InfeasibleError as error:
            return Asked(model=self.name, name=name, limit_bytes=limit, plan=None, problem=str(error))
        return Asked(model=self.name, name=name, limit_bytes=limit, plan=plan, problem=None)

    def _plan(self, choices: DenseChoices, limit: int) -> Plan:
        device = self._topology.device.model_copy(update={"memory_bytes": limit})
        topology = self._topology.model_copy(update={"device": device})
        return search(
            self.counted.model_copy(update={"topology": topology, "dense_choices": choices}), bundle=self._bundle
        )


def main() -> None:
    """Plan, train what is missing, and write the result; or be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--times", type=int, default=3, help="trainings of each layout in the end; default: 3")
    parser.add_argument(
        "--kept", type=Path, default=KEPT, help="file of the runs; default: build/dense-throughput.jsonl"
    )
    parser.add_argument("--minutes", type=float, help="begin no training after so long; default: no limit")
    options = parser.parse_args()
    if unknown := sorted(set(options.models) - MODELS.keys()):
        parser.error(f"unknown model {unknown[0]!r}; hint: choose among {', '.join(MODELS)}")
    hardware, bundle = Hardware.read(options.profile / "hardware.json"), load_bundle(options.profile / "bundle")
    models = [Model(name, hardware, bundle) for name in options.models or MODELS]
    options.kept.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    for number in range(1, options.times + 1):
        for model in models:
            for trainings in ([*model.planned()], *([each] for _, each in model.refused())):
                while missing := [each for each in trainings if _is_missing(model, each, number, options.kept)]:
                    if options.minutes is not None and time.monotonic() - began > 60 * options.minutes:
                        break
                    for found in trained(model, missing):
                        with options.kept.open("a", encoding="utf-8") as file:
                            file.write(f"{json.dumps(asdict(found))}\n")
                        print(_row(found), flush=True)
    lines = list(report(models, kept(options.kept)))
    if options.models or options.minutes is not None:
        print("\n".join(lines))
    else:
        print(write_result("dense-throughput", lines, hardware=hardware_slug()))


def _is_missing(model: Model, training: Training, times: int, file: Path) -> bool:
    """Return whether a layout was trained less often. A failure is the kernel's, and needs no repetition."""
    before = runs_of(kept(file), model.name, training)
    return len(before) < times and not any(each.failure for each in before)


def trained(model: Model, trainings: Sequence[Training]) -> list[Run]:
    """Train layouts one after the other in two processes, up to the first that fails."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "job.json").write_text(model.job.to_json(), encoding="utf-8")
        for number, each in enumerate(trainings):
            (folder / f"{number}.plan.json").write_text(each.plan.to_json(), encoding="utf-8")
        limits = [str(each.limit_bytes + each.margin_bytes) for each in trainings]
        ended = subprocess.run(  # noqa: S603 - this script
            [sys.executable, *torchrun(Path(__file__), "--train", str(folder), *limits)],
            env={**os.environ, **ENVIRONMENT},
            timeout=TIMEOUT_SECONDS,
            check=False,
            capture_output=True,
            text=True,
        )
        found: list[Run] = []
        for number, each in enumerate(trainings):
            files = [folder / f"{number}.{rank}.json" for rank in range(WORLD_SIZE)]
            has_trained = all(file.exists() for file in files)
            steps = [json.loads(file.read_text(encoding="utf-8")) for file in files] if has_trained else []
            found.append(
                Run(
                    model=model.name,
                    layout=each.layout,
                    limit_bytes=each.limit_bytes,
                    commit=commit(),
                    step_seconds=steps[0]["clock"] if steps else [],
                    processor_seconds=[sum(both) for both in zip(*(each["processor"] for each in steps), strict=True)],
                    failure=None if has_trained else _last_words(ended.stderr),
                    load=load,
                )
            )
            if not has_trained:
                break
    return found


def _last_words(text: str) -> str:
    """Return the line of a failed process that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if FULL in line), lines[-1] if lines else "")


def train(folder: Path, limits: Sequence[int]) -> None:
    """Train each layout under its limit, and write this rank's steps."""
    logging.disable(logging.WARNING)
    # Larger blocks go back to the kernel when they are freed; otherwise glibc keeps up to 32 MiB of each in a heap.
    assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MIB)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    job = read_job(folder / "job.json")
    for number, limit in enumerate(limits):
        plan = any_plan(read_data(folder / f"{number}.plan.json"), where="plan")
        gc.collect()
        dist.barrier()
        hold(_private_bytes() + limit)
        steps = _steps(job, plan)
        (folder / f"{number}.{dist.get_rank()}.json").write_text(json.dumps(steps), encoding="utf-8")
        hold(resource.RLIM_INFINITY)
    dist.barrier()


def _steps(job: DLRMTrainingJob, plan: GivenPlan) -> dict[str, list[float]]:
    """Return the seconds of steps under a plan, by clock."""
    _, step = planned_training(job, plan)
    clock, processor = [], []
    for batch in batches_of(job, plan, STEPS):
        began, used = time.perf_counter(), time.process_time()
        step(batch)
        clock.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return {"clock": clock[WARM_UP_STEPS:], "processor": processor[WARM_UP_STEPS:]}


def hold(most_bytes: int) -> None:
    """Let the kernel refuse this process more private memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, resource.RLIM_INFINITY))


def _private_bytes() -> int:
    """Return the private writable memory of this process, which RLIMIT_DATA is on."""
    found = re.search(r"^VmData:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def kept(path: Path) -> list[Run]:
    """Return the runs that a file keeps."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Run(**values) for values in map(json.loads, lines)]


def runs_of(runs: Sequence[Run], model: str, training: Training) -> list[Run]:
    """Return the runs of a layout under a limit."""
    asked = model, training.layout, training.limit_bytes
    return [each for each in runs if (each.model, each.layout, each.limit_bytes) == asked]


def report(models: Sequence[Model], runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the result."""
    yield "# Samples per second of the dense part at limits of memory"
    yield ""
    yield f"Machine: {cpu_model()}, {os.cpu_count()} cores; {WORLD_SIZE} processes over gloo, {BATCH} samples each."
    yield f"Load average at the start of a training: at most {max((each.load for each in runs), default=0.0):.1f}."
    yield f"Commits: {', '.join(dict.fromkeys(each.commit for each in runs))}."
    yield ""
    yield from str(__doc__).splitlines()[7:]
    yield ""
    yield f"Samples per second are of the median of {STEPS - WARM_UP_STEPS} steps by the clock: the median training,"
    yield "and the lowest and the highest. `refused` is the planner's answer before anything is trained."
    yield ""
    yield from PAPER.splitlines()
    head = f"| model | limit MiB | {' | '.join(LAYOUTS)} | best of the others | {AUTO} is |"
    yield from ("", head, f"|{'---|' * (len(LAYOUTS) + 4)}")
    for model in models:
        for limit in model.limits:
            yield _limit_row(model, limit, runs)
    yield from (
        "",
        "| model | layout | planned MiB | processor ms | predicted step ms | units |",
        "|---|---|---|---|---|---|",
    )
    for model in models:
        yield from _layout_rows(model, runs)
    for model in models:
        yield from _killed(model, runs)
    yield from ("", "Trained although the planner refuses them:", "")
    for model in models:
        yield from _forced(model, runs)
    yield from ("", "What the planner says:", "")
    yield from dict.fromkeys(
        f"- {each.model}, {each.limit_bytes / MIB:.0f} MiB, {each.name}: {each.problem}"
        for model in models
        for each in model.asked
        if each.problem
    )


def speeds(asked: Asked, runs: Sequence[Run]) -> list[float]:
    """Return the samples per second of the trainings of a planned layout, at whatever limit, in ascending order."""
    if asked.plan is None:
        return []
    own = [each for each in runs if (each.model, each.layout) == (asked.model, asked.layout) and not each.failure]
    return sorted(each.samples_per_second for each in own)


def verdict(own: Sequence[float], others: Sequence[float]) -> str:
    """Return the place of trainings next to others: first, equal within their spread, or behind by how much."""
    if not own:
        return "not trained"
    if not others or min(own) > max(others):
        return "first"
    if max(own) >= min(others):
        return "equal within the spread"
    return f"{100 * (1 - median(own) / median(others)):.1f} % slower"


def _limit_row(model: Model, limit: int, runs: Sequence[Run]) -> str:
    found = {each.name: (each, speeds(each, runs)) for each in model.asked if each.limit_bytes == limit}
    own = found[AUTO][1]
    others = max((those for name, (_, those) in found.items() if name != AUTO and those), key=median, default=[])
    name = next(
        (name for name, (_, those) in found.items() if name != AUTO and those is others and others), "none fits"
    )
    place = verdict(own, others)
    is_same = any(
        each.plan is not None and found[AUTO][0].plan is not None and each.layout == found[AUTO][0].layout
        for other, (each, _) in found.items()
        if other == name
    )
    cells = [_cell(*found[each]) for each in LAYOUTS]
    place = "the same layout" if is_same else place
    return f"| {model.name} | {limit / MIB:.0f} | {' | '.join(cells)} | {name} | {place} |"


def _cell(asked: Asked, found: Sequence[float]) -> str:
    if asked.plan is None:
        return "refused"
    return f"{median(found):.1f} ({found[0]:.1f} to {found[-1]:.1f})" if found else ""


def _layout_rows(model: Model, runs: Sequence[Run]) -> Iterator[str]:
    seen: set[str] = set()
    for each in model.asked:
        if each.plan is None or each.layout in seen:
            continue
        seen.add(each.layout)
        own = [run for run in runs if (run.model, run.layout) == (model.name, each.layout) and not run.failure]
        processor = f"{1000 * median(median(run.processor_seconds) for run in own):.0f}" if own else ""
        used = max(memory.used_bytes for memory in each.plan.memory)
        step = "" if each.plan.step is None else f"{each.plan.step.total_ms:.0f}"
        yield f"| {model.name} | {each.name} | {used / MIB:.0f} | {processor} | {step} | {_units(each.plan)} |"


def _units(plan: Plan) -> str:
    """Return the numbers of units by the way in which they are kept."""
    if plan.dense is None:
        return "all replicated"
    words = [
        f"{each.strategy.value}{' split' if each.split else ''}{' checkpointed' if each.checkpointed else ''}"
        for each in plan.dense.units
    ]
    return ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))


def _killed(model: Model, runs: Sequence[Run]) -> Iterator[str]:
    for training in model.planned():
        for each in runs_of(runs, model.name, training):
            if each.failure:
                yield f"\n**Planned, and failed**: {model.name} under {each.limit_bytes / MIB:.0f} MiB: {each.failure}"


def _forced(model: Model, runs: Sequence[Run]) -> Iterator[str]:
    for name, training in model.refused():
        for each in runs_of(runs, model.name, training)[:1]:
            end = f"failed: {each.failure}" if each.failure else "**trained all the same**"
            yield f"- {model.name}, {name} under {training.limit_bytes / MIB:.0f} MiB: {end}"


def _row(found: Run) -> str:
    speed = found.failure or f"{found.samples_per_second:.1f} samples/s"
    return f"{found.model} {found.layout} under {found.limit_bytes / MIB:.0f} MiB: {speed}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), [int(each) for each in sys.argv[3:]])
    else:
        main()
