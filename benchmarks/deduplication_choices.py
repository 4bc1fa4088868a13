"""Whether the planner leaves out repeats where that pays on this CPU: twelve synthetic jobs, trained in all forms.

    python -m benchmarks.deduplication_choices              # profiles this machine first
    python -m benchmarks.deduplication_choices PROFILE      # under a profile that it made before

All forms of a job are trained under one placement, that of the plan on all lists, and take turns step by step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch.distributed as dist
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicationForm
from neuroshard_api.documents.request import Constraints, Pipeline, PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.job.training import SyntheticGroup, SyntheticSessions
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.deduplication import repeating_groups
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import predicted_cost
from neuroshard_planner.problem.problem import Problem
from neuroshard_profiler.data.batches import DataBatch, FeatureBatch
from neuroshard_profiler.data.statistics import data_statistics
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions
from neuroshard_trainer.data.synthetic import SyntheticSource

from benchmarks.deduplication_report import Measured, report
from benchmarks.forms import CLOCK, FORMS, PARTS, PLAIN, PROCESSOR, StepParts, timed_forms
from benchmarks.plan_times import new_profile
from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import BY_COLUMNS, NUM_DENSE, WORLD_SIZE, start_process, torchrun

USER = tuple(f"user{index}" for index in range(4))
ITEMS = tuple(f"item{index}" for index in range(4))
NUM_BATCHES, STEPS = 4, 24
PROFILED_BATCH = 2048
PROFILED = ((1, 3), (2, 30), (3, 10), (6, 15), (6, 3), (12, 30))
"""Factor and lookups of jobs whose tables are profiled; none of them is planned."""
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
        """Return the maker of a rank's batches."""
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
    parser.add_argument("--note", default="", help="sentence about what else ran on the machine")
    parser.add_argument("--train", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
    elif options.profile is not None:
        measure(options.profile, options.note)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            measure(new_profile(Path(scratch), profiled_tables(), batch_size=PROFILED_BATCH), options.note)


def profiled_tables() -> TableSet:
    """Return tables such as the jobs have, counted on other jobs, as the profile of a job has those that it counted."""
    sets = [known_tables(Job(*each, PROFILED_BATCH)) for each in PROFILED]
    tables = [
        table.model_copy(update={"name": f"{table.name}-{number}"})
        for number, each in enumerate(sets)
        for table in each.tables
        if table.name in (USER[0], ITEMS[0])
    ]
    return sets[0].model_copy(update={"name": "jobs", "tables": tuple(tables)})


def known_tables(job: Job) -> TableSet:
    """Return the tables of a job whose log was counted: reuse of a global batch, and the factor of its sessions."""
    batch = job.maker(rank=0, world_size=1).training(0)
    names = [table.name for table in job.tables.tables]
    lengths = np.split(batch.lengths.numpy(), len(names))
    values = np.split(batch.values.numpy(), np.cumsum(batch.values_per_feature)[:-1])
    features = {name: FeatureBatch(ids=ids, lengths=own) for name, ids, own in zip(names, values, lengths, strict=True)}
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
    return job.tables.model_copy(update={"tables": tables, "session_run": job.run, "reuse_batch_size": size})


def request_of(job: Job, profile: Path) -> PlanRequest:
    """Return the request of a job."""
    return PlanRequest(
        tables=known_tables(job),
        topology=Hardware.read(profile / "hardware.json").topology(num_nodes=1, devices_per_node=WORLD_SIZE),
        batch_size_per_device=job.batch_size,
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=Constraints(sharding_types=BY_COLUMNS),
        pipeline=Pipeline.NONE,
    )


def predicted_of(plan: Plan, bundle: Bundle, form: str) -> StepParts:
    """Return the predicted parts of a step under a placement in a form, of the slowest device each."""
    update: dict[str, object] = {"deduplicate": None if form == PLAIN else (USER[0],)}
    if form == DeduplicationForm.GROUPED:
        update["grouped"] = (USER[0],)
    problem = Problem(plan.resolved.model_copy(update=update), bundle)
    cost = predicted_cost(problem, placement_of(plan.tables, problem), plan.predicted.source)
    return {name: max(getattr(each, name) or 0.0 for each in cost.devices) for name in PARTS}


def form_of(plan: Plan) -> str:
    """Return the form that a plan chose."""
    return str(plan.deduplication[0].form) if plan.deduplication else PLAIN


def measure(profile: Path, note: str) -> None:
    """Plan and train all jobs, and write the result, with what else ran on the machine."""
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
    measured = [
        Measured(
            job=job,
            factor=found["factor"],
            planned_factor=repeating_groups(decided.request.model_copy(update={"deduplicate": (USER[0],)}))[0].factor,
            choice=form_of(decided),
            times={by: found[by] for by in (CLOCK, PROCESSOR)},
            predicted={form: predicted_of(plan, bundle, form) for form in (PLAIN, *map(str, FORMS))},
        )
        for job, plan, decided, found in zip(JOBS, plain, chosen, times, strict=True)
    ]
    head = (
        f"Machine: {cpu_model()}, two cores; load average at the start {start:.1f}, at the end "
        f"{os.getloadavg()[0]:.1f}. {note} Two processes with gloo, one core each; four user tables whose lists "
        "repeat together, four item tables of one lookup, 64 columns, row-wise Adagrad, a small dense part. "
        f"{STEPS} steps of each form in turns under one placement; ratios are medians of neighbors, of a form over "
        "all lists. The planner knows reuse and factor as `neuroshard stats` counts them, and that no pipeline hides "
        f"the exchange of indices. Cost models: `{bundle.manifest.name}`, {bundle.manifest.source}, profiled with "
        f"tables of {len(PROFILED)} other jobs at {PROFILED_BATCH:,} samples, with and without repeats; "
        "hold-out error of compute "
        f"{bundle.manifest.networks[0].hold_out.mape:.1%}."
    )
    lines = ["# The planner's choice of leaving out repeated lists, on this CPU", "", head, "", *report(measured)]
    print(
        write_result("deduplication-choices", lines, hardware=hardware_slug(), packages=("numpy", "torch", "torchrec"))
    )


def train(folder: Path) -> None:
    """Train every job in all forms, and have rank 0 write what it measured."""
    start_process()
    found = []
    for number, job in enumerate(JOBS):
        plan = Plan.read(folder / f"{number}.plan.json")
        maker = job.maker(rank=dist.get_rank(), world_size=WORLD_SIZE)
        found.append(timed_forms(plan, job.tables, USER, maker, num_batches=NUM_BATCHES, steps=STEPS, folder=folder))
    if dist.get_rank() == 0:
        (folder / TIMES_FILE).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
