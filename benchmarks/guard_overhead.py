"""What guard and counters of narrow types cost: processor time of a check, and of counting, over that of steps.

python -m benchmarks.guard_overhead

Two processes train the model of examples/02-movielens.yaml on synthetic samples by the trainer's own loop, with INT8
forward, FP16 backward, and a check after every step or after none.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import yaml
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.job.communication import CommunicationGuard
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_trainer.communication.codecs import SwitchableCodec, codecs_of
from neuroshard_trainer.ranks.process import Launched, Process, start_process
from neuroshard_trainer.run import RunPaths, set_up

from benchmarks.narrow_types import EXAMPLE, WORLD_SIZE, plan_of
from benchmarks.results_file import write_result

TYPES = WireTypes(forward=WireType.INT8, backward=WireType.FP16)
CHECK_EVERY = CommunicationGuard().check_every_steps
NEVER = 10**6
STEPS, MORE_STEPS = 40, 80
ROUNDS = 6
CALLS = 2000
AIM = 0.002


def job_of(*, steps: int, check_every: int) -> DLRMTrainingJob:
    """Return the example's job, which ends after that many steps."""
    raw: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    spec = raw["spec"]
    types = {direction: [kind] for direction, kind in TYPES.model_dump(mode="json").items()}
    spec["training"] |= {
        "epochs": 1,
        "maxSteps": steps,
        "communication": {"policy": "Fixed"},
    }
    spec["experimental"] = {
        "communication": {"embeddings": types, "guard": {"checkEverySteps": check_every}},
        "data": {"readerProcesses": 0},
    }
    spec["data"] = {"format": "Synthetic", "numSamples": 120_000}
    return DLRMTrainingJob.from_data(raw)


def training_seconds(job: DLRMTrainingJob, process: Process, folder: Path) -> float:
    """Return the processor time of this rank in a training, its last evaluation and checkpoint included."""
    plan = plan_of(job, TYPES)
    plan_file = folder / "plan.json"
    folders = [folder / f"run-{time.monotonic_ns()}"]
    torch.distributed.broadcast_object_list(folders, group=process.group)
    if process.is_first:
        plan_file.write_text(plan.to_json())
        folders[0].mkdir()
    torch.distributed.barrier(process.group)
    loop = set_up(job, plan, RunPaths(plan_file=plan_file, run_dir=folders[0], data_dir=folder), process)
    begin = time.process_time()
    loop.run()
    return time.process_time() - begin


def counting_seconds() -> float:
    """Return the processor time of counting a step's encodings and decodings: of both directions, and taking them."""
    job = job_of(steps=1, check_every=NEVER)
    codecs = codecs_of(plan_of(job, TYPES), torch.device("cpu"))
    assert codecs is not None, "the plan encodes"
    values = torch.zeros(1, 32)

    def seconds(codec: Any) -> float:  # noqa: ANN401 - FBGEMM's, or ours around it
        context = codec.create_context()
        begin = time.process_time()
        for _ in range(CALLS):
            codec.decode(codec.encode(values, context), context)
        return (time.process_time() - begin) / CALLS

    added = 0.0
    for own in (codecs.forward, codecs.backward):
        plain = SwitchableCodec(own._codec)  # noqa: SLF001 - without the scale, which is not a counting
        added += seconds(plain) - seconds(own._codec)  # noqa: SLF001
        plain.take_work()
    return max(added, 0.0)


def rank(folder: Path) -> None:
    """Train with and without checks in turns; rank 0 writes what each round took."""
    first = job_of(steps=STEPS, check_every=NEVER)
    process = start_process(first, plan_of(first, TYPES), Launched.from_environment(), "cpu", nccl_log_folder=folder)
    found = []
    for number in range(ROUNDS + 1):
        kinds = {
            "checks": job_of(steps=STEPS, check_every=1),
            "none": first,
            "longer": job_of(steps=MORE_STEPS, check_every=NEVER),
        }
        order = list(kinds) if number % 2 else list(kinds)[::-1]
        found.append({kind: training_seconds(kinds[kind], process, folder) for kind in order})
    if process.is_first:
        (folder / "found.json").write_text(json.dumps({"rounds": found[1:], "counting": counting_seconds()}))
    torch.distributed.barrier(process.group)


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return the lines of the result."""
    checks = [1000 * (each["checks"] - each["none"]) / STEPS for each in found["rounds"]]
    steps = [1000 * (each["longer"] - each["none"]) / (MORE_STEPS - STEPS) for each in found["rounds"]]
    counting_us = 1e6 * found["counting"]
    step, checks_us = mean(steps), 1000 * mean(checks) / CHECK_EVERY
    of_guard, of_counting = mean(checks) / CHECK_EVERY / step, counting_us / 1000 / step
    return [
        "# Overhead of the guard of narrow types",
        "",
        (
            f"The model of `examples/02-movielens.yaml`, two processes with gloo, 512 samples each, {TYPES.text}, by "
            f"the trainer's own loop and pipeline. Processor time of rank 0, means and standard deviations of {ROUNDS} "
            f"rounds; a check is the difference between {STEPS} steps with one after each and with none, a step that "
            f"between {MORE_STEPS} and {STEPS} steps. Counting is what the trainer's codecs add to FBGEMM's, in one "
            f"encoding and decoding of both directions, mean of {CALLS:,}."
        ),
        "",
        "| what | processor time | share of a step |",
        "|---|---|---|",
        f"| a step | {step:.2f} ± {stdev(steps):.2f} ms | |",
        f"| a check | {mean(checks):.2f} ± {stdev(checks):.2f} ms | |",
        f"| checks every {CHECK_EVERY} steps, by default | {checks_us:.1f} us | {of_guard:.3%} |",
        f"| counting | {counting_us:.1f} us | {of_counting:.3%} |",
        f"| both | | {of_guard + of_counting:.3%} |",
        "",
        f"The aim is below {AIM:.1%}.",
    ]


def main() -> None:
    """Measure and write the result; or, given a folder, be one of the processes that train."""
    if len(sys.argv) > 1:
        rank(Path(sys.argv[1]))
        sys.stdout.flush()
        os._exit(0)  # as the trainer ends
    with tempfile.TemporaryDirectory() as scratch:
        launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node"]
        command = [*launcher, str(WORLD_SIZE), "-m", "benchmarks.guard_overhead", scratch]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - ours
        found = json.loads(Path(scratch, "found.json").read_text())
    print(write_result("guard-overhead", lines_of(found), packages=("torch", "torchrec", "fbgemm-gpu-cpu")))


if __name__ == "__main__":
    main()
