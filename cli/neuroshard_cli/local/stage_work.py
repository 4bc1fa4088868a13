"""The commands of a run's stages for what decisions start: the same that pods run, with files of the run directory."""

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.job.plan_request import counts_dense
from neuroshard_api.job.stage_commands import (
    ANY_PORT,
    READY_FILE_VARIABLE,
    dense_command,
    planner_command,
    profiler_command,
    torchrun_environment,
    trainer_command,
    trial_command,
    worker_environment,
)
from neuroshard_api.process.failures import CommandError
from neuroshard_decisions.files import REQUEST_FILE

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.kept import Kept
from neuroshard_cli.local.stage_runner import TRAIN, Work
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.job.experimental import StagePods
    from neuroshard_api.job.spec import Spec
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_decisions.actions import PlannerRun


def profiler_work(directory: RunDirectory, job: "DLRMTrainingJob") -> Work:
    """Return the commands that measure this machine."""
    command = profiler_command(
        job_file=str(directory.job_file),
        tables_file=str(directory.tables_file),
        out_dir=str(directory.profile_dir),
        python=sys.executable,
    )
    return Work(stage="profile", commands=[command], within_s=_limit_s(job.spec.experimental.profiler))


def planner_work(
    directory: RunDirectory, kept: Kept, run: "PlannerRun", spec: "Spec", *, bundle_dir: Path, is_beside: bool
) -> Work:
    """Return the commands that search a plan: next to a training at low priority, with the dense part as counted."""
    request, out = (
        (directory.candidate_request_file, directory.candidate_file)
        if is_beside
        else (directory.request_file, directory.plan_file)
    )
    write_file(request, run.files.contents[REQUEST_FILE].decode())
    out.unlink(missing_ok=True)
    near, has_dense = run.in_force, counts_dense(spec)
    command = planner_command(
        request_file=str(request),
        bundle_dir=str(bundle_dir),
        plan_file=str(out),
        dense_file=str(directory.dense_file) if has_dense else None,
        statistics_file=None if near is None else str(kept.folder(near.inputs) / near.inputs_key),
        incumbent_file=None if near is None else str(kept.folder(near.plan) / near.plan_key),
        python=sys.executable,
    )
    counting = dense_command(
        job_file=str(directory.job_file),
        request_file=str(request),
        dense_file=str(directory.dense_file),
        device=run.device,
        python=sys.executable,
    )
    return Work(
        stage="replan" if is_beside else "plan",
        commands=[counting, command] if has_dense and not is_beside else [command],
        within_s=_limit_s(spec.experimental.planner),
        is_beside=is_beside,
    )


def worker_work(directory: RunDirectory, job: "DLRMTrainingJob", data_dir: Path, ready_file: Path) -> Work:
    """Return the command that trains. Raises CommandError where the job's port is in use."""
    work = _training(directory, job, data_dir)
    return replace(work, environment={**work.environment, READY_FILE_VARIABLE: str(ready_file)})


def trial_work(directory: RunDirectory, job: "DLRMTrainingJob", data_dir: Path, *, steps: int) -> Work:
    """Return the command that takes some steps as the training will. Raises CommandError as `worker_work` does."""
    work = _training(directory, job, data_dir)
    return replace(work, stage="trial", commands=[trial_command(*work.commands, steps=steps)])


def _training(directory: RunDirectory, job: "DLRMTrainingJob", data_dir: Path) -> Work:
    """Return the command of the job's trainer."""
    rendezvous = job.spec.experimental.rendezvous
    port = rendezvous.port if "port" in rendezvous.model_fields_set else ANY_PORT
    if port != ANY_PORT:
        _require_free(port)
    places = {
        "plan_file": str(directory.plan_file),
        "run_dir": str(directory.train_dir),
        "data_dir": str(data_dir),
    }
    command = trainer_command(job, job_file=str(directory.job_file), python=sys.executable, **places)
    servers = _servers(directory, job)
    environment = {
        **{each.name: each.value or "" for each in job.spec.trainer.env if each.value_from is None},
        **worker_environment(**places),
        **torchrun_environment(job, host="localhost", port=port, run_id=job.metadata.name, has_servers=bool(servers)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
    }
    return Work(stage=TRAIN, commands=[command], environment=environment, names=servers)


def _servers(directory: RunDirectory, job: "DLRMTrainingJob") -> Mapping[int, str]:
    """Return the names of the ranks that are embedding servers by the plan in force."""
    from neuroshard_api.documents.plan import GivenPlan

    if job.spec.experimental.embedding_servers is None:
        return {}
    plan = GivenPlan.read(directory.plan_file)
    pool = plan.request.servers
    if pool is None or not plan.num_server_processes:
        return {}
    return {plan.num_devices + process: pool.process_name(process) for process in range(pool.num_processes)}


def _limit_s(stage: "StagePods") -> float | None:
    """Return the timeoutSeconds that the job sets. None: it sets none.

    The default keeps pods from holding devices of a cluster; a busy machine takes longer and does no harm.
    """
    return stage.timeout_seconds if "timeout_seconds" in stage.model_fields_set else None


def _require_free(port: int) -> None:
    """Raise CommandError, before torchrun would, if another program has a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("localhost", port))
        except OSError as error:
            raise CommandError(
                f"spec.experimental.rendezvous.port: {port} is in use by another program; hint: choose another one, or "
                "leave the field out"
            ) from error
