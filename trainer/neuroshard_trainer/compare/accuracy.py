"""Trains a job in pairs, with a plan's narrow types and exactly, from equal weights on equal batches."""

import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.accuracy_comparison import Accuracy, AccuracyComparison, AccuracyPair
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.experimental import ResumePolicy
from neuroshard_api.job.sizes import under_plan
from neuroshard_api.job.stage_commands import PROGRESS_FILE
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError

from neuroshard_trainer.data.readers import start_server
from neuroshard_trainer.data.training_data import readers_of
from neuroshard_trainer.files import write_file
from neuroshard_trainer.ranks.failures import lost_peers
from neuroshard_trainer.ranks.process import Launched, start_process
from neuroshard_trainer.run import RunPaths, set_up
from neuroshard_trainer.sharding.plan_adapter import read_plan, require_lasting_gradients

EXACT, NARROW = "exact", "narrow"


def compare_accuracy(
    job: DLRMTrainingJob, plan_file: Path, *, data_dir: Path, run_dir: Path, seeds: int, steps: int | None
) -> tuple[AccuracyComparison, bool]:
    """Train a job twice with each of some seeds. All ranks must call this.

    The trainings of a pair have the placement of the plan, so that weights and batches are equal.

    Args:
        job: what to train, under its own guard.
        plan_file: a plan with narrow types.
        data_dir: what relative paths of spec.data start from.
        run_dir: of all trainings, each in a folder of its own.
        seeds: pairs; the first has the job's seed, each other the next one.
        steps: of each training. None: the job's.

    Returns:
        The comparison, and whether this is the first rank.

    Raises:
        ExpectedError: of the kind that says what to do.
    """
    launched = Launched.from_environment()
    inline = job.spec.model.inline_tables(job.metadata.name)
    plan = read_plan(plan_file, world_size=launched.world_size, tables=None if inline is None else inline.tables)
    job = under_plan(job, plan)
    require_lasting_gradients(plan)
    exact = exact_plan(plan)
    process = start_process(job, plan, launched, "auto", nccl_log_folder=run_dir)
    if readers_of(job, process):
        start_server()
    exact_file = run_dir / "exact.plan.json"
    if process.is_first:
        write_file(exact_file, exact.to_json())
    dist.barrier(process.group)  # all read the file
    forms = {EXACT: (exact, exact_file), NARROW: (plan, plan_file)}
    found = []
    step = 0
    with lost_peers(lambda: "while trainings were compared", trains=lambda: True):
        for seed in range(job.spec.training.seed, job.spec.training.seed + seeds):
            accuracies, suspended = {}, False
            for form, (each, file) in forms.items():
                places = RunPaths(plan_file=file, run_dir=run_dir / f"{form}-{seed}", data_dir=data_dir)
                places.run_dir.mkdir(exist_ok=True)
                loop = set_up(_with_seed(job, seed, steps), each, places, process)
                metrics = loop.run()
                step = loop.step
                if "normalized_entropy" not in metrics:
                    raise InputError(
                        "spec.data: no samples are held out to compare the accuracy by, or all their labels are equal; "
                        "hint: set validationPercent or evaluationPath, so that labels 0 and 1 are held out"
                    )
                accuracies[form] = Accuracy(normalized_entropy=metrics["normalized_entropy"], auc=metrics.get("auc"))
                if process.is_first:
                    suspended = suspended or _was_suspended(places.run_dir / PROGRESS_FILE)
                    shutil.rmtree(places.run_dir)  # each has a checkpoint of the whole model
            found.append(
                AccuracyPair(seed=seed, exact=accuracies[EXACT], narrow=accuracies[NARROW], suspended=suspended)
            )
    comparison = AccuracyComparison(
        device=torch.cuda.get_device_name(process.device) if process.device.type == "cuda" else "cpu",
        world_size=process.world_size,
        steps=step,
        wire=plan.resolved.wire,
        gradients=plan.resolved.gradients,
        pairs=tuple(found),
    )
    return comparison, process.is_first


def exact_plan(plan: GivenPlan) -> GivenPlan:
    """Return the same placement with exact exchange, without a price."""
    changes = dict.fromkeys(("wire", "communication", "gradients", "gradient_choices"))
    return GivenPlan(
        algorithm=plan.algorithm,
        tables=plan.tables,
        deduplication=plan.deduplication,
        stored_types=plan.stored_types,
        replication=plan.replication,
        dense=plan.dense,
        request=plan.request.model_copy(update=changes),
    )


def _with_seed(job: DLRMTrainingJob, seed: int, steps: int | None) -> DLRMTrainingJob:
    """Return a job that begins again with a seed, evaluates at its end, and ends after that many steps."""
    training = job.spec.training.model_copy(
        update={
            "seed": seed,
            "max_steps": job.spec.training.max_steps if steps is None else steps,
            "target_auc": None,
            "tensorboard": False,
        }
    )
    few = job.spec.experimental
    checkpoint = few.checkpoint.model_copy(update={"resume_policy": ResumePolicy.NONE})
    experimental = few.model_copy(update={"checkpoint": checkpoint, "watch_drift": False})
    spec = job.spec.model_copy(update={"training": training, "experimental": experimental})
    return job.model_copy(update={"spec": spec})


def _was_suspended(file: Path) -> bool:
    progress = TrainingProgress.read(file)
    guards = [each for each in (progress.guard, progress.gradient_guard) if each is not None]
    return any(guard.times_suspended for guard in guards)
