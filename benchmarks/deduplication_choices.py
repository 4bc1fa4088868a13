"""Whether the planner leaves out repeats where that pays on this CPU: twelve synthetic jobs, trained in both forms.

    python -m benchmarks.deduplication_choices              # profiles this machine first
    python -m benchmarks.deduplication_choices PROFILE      # under a profile as `plan_times` measures it

Both forms of a job are trained under one placement, that of the plan on all lists, and take turns step by step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch.distributed as dist
from neuroshard_api.hardware import Hardware
from neuroshard_api.job_training import SyntheticGroup, SyntheticSessions
from neuroshard_api.plan import Plan
from neuroshard_api.request import Constraints, PlanRequest
from neuroshard_api.tables import Optimizer, Table, TableSet
from neuroshard_costs.bundle import load_bundle
from neuroshard_planner.planning import Bundle
from neuroshard_planner.planning import plan as search
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_profiler.batches import DataBatch, Jagged
from neuroshard_profiler.statistics import data_statistics
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions
from neuroshard_trainer.data.synthetic import SyntheticSource

from benchmarks.plan_times import new_profile
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import BY_COLUMNS, NUM_DENSE, WORLD_SIZE, start_process, torchrun
from benchmarks.two_forms import TwoForms, both_forms

USER = tuple(f"user{index}" for index in range(4))
ITEMS = tuple(f"item{index}" for index in range(4))
NUM_BATCHES, STEPS = 4, 24
CLOSE = 1.05
"""A choice is right where its time is at most this many times the better one's."""
WANTED_RIGHT = 10
WITHIN = 0.3
"""Of the measured saving, within which the predicted one is to be."""
TIMES_FILE = "times.json"


@dataclass(frozen=True, slots=True)
class Job:
    """A synthetic job."""

    factor: float
    """Samples over distinct ones of the user lists, in endless sessions."""
    pooling: float
    """Lookups of a user list."""
    batch_size: int
    """Samples of each process."""

    @property
    def run(self) -> int:
        """Maximum samples of a run."""
        return 8 if self.factor <= 8 else 16  # noqa: PLR2004 - the usual run allows no higher factor

    @property
    def sessions(self) -> SyntheticSessions:
        """Long sessions whose user lists change together, as often as the factor asks for."""
        change = max(1e-6, (self.run / self.factor - 1) / (self.run - 1))
        group = SyntheticGroup(features=USER, change_probability=f"{change:.6f}")
        return SyntheticSessions(samples_per_session="1e6", concurrency=16, groups=(group,))

    @property
    def tables(self) -> TableSet:
        """Four tables of user lists, and four of single items."""
        return TableSet(
            name="job",
            tables=(
                *(
                    Table(name=name, num_embeddings=200_000, embedding_dim=64, pooling_factor=self.pooling)
                    for name in USER
                ),
                *(Table(name=name, num_embeddings=200_000, embedding_dim=64) for name in ITEMS),
            ),
        )

    def maker(self, *, rank: int, world_size: int) -> BatchMaker:
        """Return what makes the batches of a rank."""
        features = features_of(self.tables.tables)
        count = NUM_BATCHES * WORLD_SIZE * self.batch_size
        source = SyntheticSource(
            self.tables, features, num_dense=NUM_DENSE, num_samples=count, seed=0, sessions=self.sessions
        )
        kept = Sessions(source=source, run=self.run)
        order = SampleOrder(source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=kept)
        size = WORLD_SIZE * self.batch_size // world_size
        return BatchMaker(source, order, features, rank=rank, world_size=world_size, batch_size=size)


JOBS = (
    Job(1, 1, 1024),
    Job(1, 20, 2048),
    Job(1, 40, 512),
    Job(2, 1, 2048),
    Job(2, 5, 256),
    Job(2, 20, 1024),
    Job(4, 5, 256),
    Job(4, 20, 4096),
    Job(4, 40, 1024),
    Job(8, 1, 4096),
    Job(8, 20, 2048),
    Job(16, 40, 512),
)


def main() -> None:
    """Plan, train, and write the result; or be one of the processes that train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, nargs="?", help="what `neuroshard profile` wrote")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
    elif options.profile is not None:
        measure(options.profile)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(new_profile(Path(scratch)))


def request_of(job: Job, profile: Path) -> PlanRequest:
    """Return the request of a job whose log was counted: reuse of a global batch, and the factor of its sessions."""
    batch = job.maker(rank=0, world_size=1).training(0)
    names = [table.name for table in job.tables.tables]
    lengths = np.split(batch.lengths.numpy(), len(names))
    values = np.split(batch.values.numpy(), np.cumsum(batch.values_per_feature)[:-1])
    features = {name: Jagged(ids=ids, lengths=own) for name, ids, own in zip(names, values, lengths, strict=True)}
    size = WORLD_SIZE * job.batch_size
    counted = data_statistics(
        [DataBatch(num_samples=size, features=features, sessions=None)], batch_size=size, ids_are_rows=True
    )
    factor = job.sessions.factor(job.sessions.groups[0], run=job.run)
    tables = tuple(
        table.model_copy(
            update={
                "reuse_histogram": found.reuse_histogram,
                "pooling_factor": found.pooling_factor,
                "duplication_group": USER[0] if table.name in USER else None,
                "duplication_factor": factor if table.name in USER else 1.0,
            }
        )
        for table, found in zip(job.tables.tables, counted.features, strict=True)
    )
    known = job.tables.model_copy(update={"tables": tables, "session_run": job.run, "reuse_batch_size": size})
    return PlanRequest(
        tables=known,
        topology=Hardware.read(profile / "hardware.json").topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=job.batch_size,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=Constraints(sharding_types=BY_COLUMNS),
    )


def predicted_saving_ms(plan: Plan, bundle: Bundle) -> float:
    """Return what a placement is predicted to cost less without repeats."""
    costs = []
    for groups in (None, (USER[0],)):
        problem = Problem(plan.request.model_copy(update={"deduplicate": groups}), bundle)
        costs.append(predicted_cost(problem, placement_of(plan.tables, problem), plan.predicted.source).total_ms)
    return costs[0] - costs[1]


def measure(profile: Path) -> None:
    """Plan and train all jobs, and write the result."""
    start = os.getloadavg()[0]
    bundle = load_bundle(profile / "bundle")
    requests = [request_of(job, profile) for job in JOBS]
    chosen = [search(each.model_copy(update={"deduplicate": (USER[0],)}), bundle=bundle) for each in requests]
    plain = [search(each, bundle=bundle) for each in requests]
    with tempfile.TemporaryDirectory() as scratch:
        for number, plan in enumerate(plain):
            (Path(scratch) / f"{number}.plan.json").write_text(plan.to_json())
        command = [sys.executable, *torchrun(Path(__file__), "--train", scratch)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - this script
        times = json.loads((Path(scratch) / TIMES_FILE).read_text())
    rows, num_right, num_near, num_left_out = [], 0, 0, 0
    for job, plan, decided, found in zip(JOBS, plain, chosen, times, strict=True):
        (clock, processor), (clock_without, processor_without) = (
            np.array(found[form]).T for form in ("plain", "without")
        )
        ratio, of_processor = median(clock_without / clock), median(processor_without / processor)
        groups = decided.deduplication or ()
        is_right = (ratio if groups else 1.0) <= CLOSE * min(1.0, ratio)
        predicted_ms, measured_ms = predicted_saving_ms(plan, bundle), median(clock - clock_without)
        num_right += is_right
        num_left_out += bool(groups)
        num_near += bool(groups) and abs(predicted_ms - measured_ms) <= WITHIN * abs(measured_ms)
        cells = [
            *(f"{number:,g}" for number in (job.factor, job.pooling, job.batch_size)),
            f"{groups[0].factor:.2f}" if groups else "-",
            f"{found['factor']:.2f}",
            f"{median(clock):.1f}",
            f"{ratio:.2f}",
            f"{of_processor:.2f}",
            "left out" if groups else "all lists",
            "yes" if is_right else "no",
            f"{predicted_ms:.1f}",
            f"{measured_ms:.1f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    lines = [
        "# The planner's choice of leaving out repeated lists, on this CPU",
        "",
        (
            f"Machine: {cpu_model()}, two cores, shared with other work; load average at the start {start:.1f}, at "
            f"the end {os.getloadavg()[0]:.1f}. Two processes with gloo, one core each; four user tables whose lists "
            "repeat together, four item tables of one lookup, 64 columns, row-wise Adagrad, a small dense part. "
            f"{STEPS} steps of each form in turns under one placement; ratios are medians of neighbors, without "
            "repeats over all lists. The planner knows reuse and factor as `neuroshard stats` counts them. Cost "
            f"models: `{bundle.manifest.name}`, {bundle.manifest.source}."
        ),
        "",
        (
            "| factor aimed at | lookups | samples | planned | measured | step, ms | ratio by the clock | of "
            "processor time | planner's choice | right | predicted saving, ms | measured saving, ms |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        (
            f"Right (at most {CLOSE} times the better form by the clock): {num_right} of {len(JOBS)}, at least "
            f"{WANTED_RIGHT} wanted. Predicted saving within {WITHIN:.0%} of the measured one, where repeats are left "
            f"out: {num_near} of {num_left_out}."
        ),
    ]
    print(
        write_result("deduplication-choices", lines, hardware=hardware_slug(), packages=("numpy", "torch", "torchrec"))
    )


def train(folder: Path) -> None:
    """Train every job in both forms, and have rank 0 write what it measured."""
    start_process()
    found: list[TwoForms] = []
    for number, job in enumerate(JOBS):
        plan = Plan.read(folder / f"{number}.plan.json")
        maker = job.maker(rank=dist.get_rank(), world_size=WORLD_SIZE)
        found.append(both_forms(plan, job.tables, USER, maker, num_batches=NUM_BATCHES, steps=STEPS))
    if dist.get_rank() == 0:
        (folder / TIMES_FILE).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
