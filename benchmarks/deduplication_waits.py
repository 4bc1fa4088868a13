"""How long training waits for batches without repeated lists, where readers share their cores with the trainers.

python -m benchmarks.deduplication_waits
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_trainer.data.collation import Make
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.readers import Readers, start_server
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.measure.step_reporter import StepReporter

from benchmarks.deduplicated_steps import COLUMNS, USER, log_of, maker_of, source_of
from benchmarks.forms import FORMS, PLAIN
from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, measured_blocks
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.session_log import write_session_log
from benchmarks.sharded_training import NUM_DENSE, ShardedTraining, start_process

BATCH_SIZE = 4096  # of each process
TABLES = TableSet(
    name="waits",
    tables=(
        *(Table(name=name, num_embeddings=200_000, embedding_dim=COLUMNS, pooling_factor=5.0) for name in USER),
        *(Table(name=f"item{index}", num_embeddings=200_000, embedding_dim=COLUMNS) for index in range(4)),
    ),
)
CHANGE = "0.02"
LOG_SAMPLES = 98_304
WARM_STEPS, STEPS = 5, 40
WANTED_SHARE = 0.01
LOG_FILE = "log.parquet"
CORES = {"each trainer and its reader on a core": None, "both trainers and both readers on one core": 1}
"""Cores that all processes together have. None: all of the machine."""


def main() -> None:
    """Measure and write the result; or, given a folder and a form, be one of the processes that train."""
    if len(sys.argv) > 1:
        folder, data = map(Path, sys.argv[1:])
        train(folder, data)
        return
    own = sorted(os.sched_getaffinity(0))
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as scratch:
        write_log(Path(scratch) / LOG_FILE)
        for place, count in CORES.items():
            os.sched_setaffinity(0, own[:count])  # the processes inherit it
            found = measured_blocks(Path(__file__), TABLES, scratch)
            worst = max(worst, *(each["share"] for each in found.values()))
            rows += [_row(place, form, each) for form, each in found.items()]
    head = (
        f"Machine: {cpu_model()}, two cores, shared with other work; load average at the end "
        f"{os.getloadavg()[0]:.1f}. Two processes with gloo train on a Parquet log of {LOG_SAMPLES:,} samples of "
        "sessions, four user features of 5 ids whose lists repeat together and four of one id: "
        f"{24 * BATCH_SIZE:,} ids in the {BATCH_SIZE:,} samples of each process with repeats. One reader "
        f"process for each trainer. {STEPS} steps after {WARM_STEPS}; waits of the process that waits more."
    )
    lines = [
        "# Waiting for batches without repeated lists",
        "",
        head,
        "",
        "| cores | form | factor | step, median (ms) | waits, mean (ms) | longest (ms) | share of steps |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Largest share: {worst:.2%}, wanted below {WANTED_SHARE:.0%}.",
    ]
    print(write_result("deduplication-waits", lines, hardware=hardware_slug(), packages=("numpy", "torch", "pyarrow")))


def _row(place: str, form: str, found: dict[str, float]) -> str:
    cells = [
        place,
        form,
        f"{found['factor']:.2f}",
        *(f"{found[name]:.2f}" for name in ("step_ms", "wait_ms", "longest_ms")),
        f"{found['share']:.2%}",
    ]
    return f"| {' | '.join(cells)} |"


def write_log(path: Path) -> None:
    """Write the log that is trained on."""
    source = source_of(CHANGE, num_samples=LOG_SAMPLES, tables=TABLES)
    write_session_log(path, source, features_of(TABLES.tables))


def train(folder: Path, data: Path) -> None:
    """Train in each form from reader processes, and have rank 0 write the waits."""
    start_server()
    start_process()
    found = {form: waits_of(form, folder, data) for form in (PLAIN, *map(str, FORMS))}
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def waits_of(form: str, folder: Path, data: Path) -> dict[str, float]:
    """Train in a form. Both processes must call this.

    Returns:
        On rank 0: ``factor`` of the first batch; ``step_ms``, the median; ``wait_ms``, the mean; ``longest_ms``; and
        ``share``, waits over steps. On the other: nothing.
    """
    plan = Plan.read(folder / PLAN_FILE)
    keys = [feature.name for feature in features_of(TABLES.tables)]
    source = log_of([data / LOG_FILE], TABLES, num_dense=NUM_DENSE)
    maker = maker_of(source, TABLES, batch_size=BATCH_SIZE)
    make: Make = maker.training
    factor = 1.0
    if form != PLAIN:
        own = DeduplicationForm(form)
        members = tuple(keys.index(name) for name in USER)
        apart = frozenset({0} if own is DeduplicationForm.GROUPED else ())
        without = maker.collating(WithoutRepeats(groups=(members,), apart=apart)).training
        factor, make = BATCH_SIZE / without(0).num_distinct[0], without
        group = DeduplicatedGroup(group=USER[0], features=USER, form=own, factor=factor)
        plan = plan.model_copy(update={"deduplication": (group,)})
    file = folder / f"{form}-{dist.get_rank()}.plan.json"
    file.write_text(plan.to_json())
    training = ShardedTraining(plan, TABLES)
    reports: list[StepReport] = []
    reporter = StepReporter(training.model, file, write=reports.append, report_every=1, window=1, drift=False)
    readers = Readers(num_processes=1, keys=keys, pin_memory=False, timeout_seconds=120)
    size = maker.global_batch_size
    positions = range(0, (WARM_STEPS + STEPS) * size, size)
    for batch in reporter.steps(readers.batches(make, positions, torch.device("cpu"))):
        training.step(batch)
    if dist.get_rank():
        return {}
    times = [[(each.data_wait_ms, each.step_ms) for each in report.ranks] for report in reports[WARM_STEPS:]]
    waits, steps = np.array(times).transpose(2, 1, 0)  # by rank, then step
    slower = int(waits.sum(axis=1).argmax())
    return {
        "factor": factor,
        "step_ms": float(np.median(steps[slower])),
        "wait_ms": float(waits[slower].mean()),
        "longest_ms": float(waits[slower].max()),
        "share": float(waits[slower].sum() / steps[slower].sum()),
    }


if __name__ == "__main__":
    main()
