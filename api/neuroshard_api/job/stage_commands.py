"""The command lines of a job's stages: the same for the processes of `neuroshard run` and for pods. Starts nothing.

Every stage reads files and writes files; where they lie, the caller says.
"""

import re
from collections.abc import Mapping, Sequence

from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.job.profile_time import profile_seconds
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.pod.place import NODES_BEFORE_VARIABLE

RECORDS_FOLDER = "records"
"""In the profiler's output: its measurements, one ``*.jsonl`` file per kind."""
HARDWARE_FILE = "hardware.json"
"""In the profiler's output: a Hardware document."""
DENSE_FILE = "dense.json"
"""What counting the dense part writes: a DenseProfile document."""
STEP_REPORT_FILE = "step-report.json"
"""In the trainer's run directory: a StepReport document."""
DRIFT_REPORT_FILE = "drift-report.json"
"""In the trainer's run directory, next to the step report: a DriftReport document."""
INPUT_STATISTICS_FILE = "input-statistics.json"
"""In the trainer's run directory, next to the step report: an InputStatistics document."""
PROGRESS_FILE = "progress.json"
"""In the trainer's run directory: a TrainingProgress document."""
CHECKPOINTS_FOLDER = "checkpoints"
"""In the trainer's run directory."""
TRIAL_FOLDER = "trial"
"""In the trainer's run directory: the step report of a trial."""

PLAN_VARIABLE = "NEUROSHARD_PLAN"
"""Environment of the workers: the plan's file."""
RUN_DIR_VARIABLE = "NEUROSHARD_RUN_DIR"
"""Environment of the workers: the folder for checkpoints and reports; it outlives a worker."""
DATA_DIR_VARIABLE = "NEUROSHARD_DATA_DIR"
"""Environment of the workers: the folder that relative paths of spec.data begin in."""
READY_FILE_VARIABLE = "NEUROSHARD_READY_FILE"
"""Environment of a pod's worker: the file that it makes once all its processes train under the plan."""
CHECKPOINTS_LOST_VARIABLE = "NEUROSHARD_CHECKPOINTS_LOST"
"""Environment of a pod's worker: set where its checkpoints die with the pods."""
NODE_RANK_VARIABLE = "PET_NODE_RANK"
"""Environment of torchrun: the node's number. If unset: 0."""
RUN_ID_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Environment of torchrun's processes: its PET_RDZV_ID, which tells the attempts of a job apart."""
SHUTDOWN_VARIABLE = "PET_SHUTDOWN_TIMEOUT"
"""Environment of torchrun: seconds from SIGTERM until it kills its processes. An older torch waits 30 s."""

ANY_PORT = 0
"""Of torchrun's store: a free one."""
GRACE_SECONDS = 300
"""Time for a checkpoint from the request to stop until the kill, where a job's pod template sets none."""
_LAUNCHER_ENDS_WITHIN_S = 15
_MEETING_SECONDS = 180
"""Longest wait of a profiler for its peer: time to pull the image on the other node."""


def profiler_command(
    *,
    job_file: str,
    tables_file: str,
    out_dir: str,
    meet: str | None = None,
    python: str = "python",
) -> list[str]:
    """Return the command that measures a device and trains cost models of it; running it again resumes it.

    What else it needs, such as its time and the number of processes, it reads from the job.

    Args:
        job_file: the job's file.
        tables_file: the job's tables.
        out_dir: folder of the results.
        meet: host and port of node 0 of two nodes that run it, with their number in NODE_RANK_VARIABLE. If unset: one
            node is measured alone.
        python: the interpreter.
    """
    command = [python, "-m", "neuroshard_profiler", "profile", job_file, tables_file, "--out", out_dir]
    return command if meet is None else [*command, "--meet", meet]


def meeting_seconds(spec: Spec) -> int:
    """Return the seconds that two profilers wait for each other: each attempt its share of the stage's time."""
    pods = spec.experimental.profiler
    share = (pods.timeout_seconds - profile_seconds(spec)) // (pods.backoff_limit + 2)
    return max(min(share, _MEETING_SECONDS), 1)


def dense_command(
    *, job_file: str, request_file: str, dense_file: str, device: DeviceType, python: str = "python"
) -> list[str]:
    """Return the command that counts the dense part of a job for the tables of a plan request; it needs no device."""
    command = [python, "-m", "neuroshard_trainer.dense_profile", job_file, "--tables", request_file]
    return [*command, "--device", "cpu" if device.is_cpu else "cuda", "--out", dense_file]


def planner_command(
    *,
    request_file: str,
    bundle_dir: str,
    plan_file: str,
    dense_file: str | None = None,
    statistics_file: str | None = None,
    incumbent_file: str | None = None,
    python: str = "python",
) -> list[str]:
    """Return the command that searches a plan; equal inputs give equal bytes.

    Args:
        request_file: what is planned.
        bundle_dir: the cost models.
        plan_file: where the plan is written.
        dense_file: the counted dense part. None: the request says what it needs.
        statistics_file: inputs as a trainer counted them. None: the request's.
        incumbent_file: the plan in force. None: there is none.
        python: the interpreter.
    """
    command = [python, "-m", "neuroshard_planner", "--request", request_file]
    files = {"--dense": dense_file, "--statistics": statistics_file, "--incumbent": incumbent_file}
    given = [word for option, file in files.items() if file is not None for word in (option, file)]
    return [*command, *given, "--bundle", bundle_dir, "--out", plan_file]


def correction_command(
    *, bundle_dir: str, plan_file: str, report_files: Sequence[str], out_dir: str, python: str = "python"
) -> list[str]:
    """Return the command that corrects cost models by the steps of a training.

    Args:
        bundle_dir: the cost models.
        plan_file: that was trained under.
        report_files: of at least two sets of its steps.
        out_dir: where the corrected cost models are written.
        python: the interpreter.
    """
    reports = [word for file in report_files for word in ("--report", file)]
    command = [python, "-m", "neuroshard_planner.correct", "--bundle", bundle_dir, "--plan", plan_file]
    return [*command, *reports, "--out", out_dir]


def trainer_command(
    job: DLRMTrainingJob,
    *,
    job_file: str,
    plan_file: str,
    run_dir: str,
    data_dir: str,
    python: str = "python",
) -> list[str]:
    """Return the command of each node's worker: the job's own, or NeuroShard's trainer under its torchrun.

    That is torchrun with the same arguments and an exit code that failure rules can distinguish.
    It finds torchrun's settings in the variables of ``torchrun_environment`` and the files also in those of
    ``worker_environment``.
    """
    trainer = job.spec.trainer
    launcher = [python, "-m", "neuroshard_trainer.launch", "-m", "neuroshard_trainer"]
    own = [*launcher, job_file, "--plan", plan_file, "--run-dir", run_dir, "--data-dir", data_dir]
    return [*(trainer.command or own), *trainer.args]


def trial_command(command: Sequence[str], *, steps: int) -> list[str]:
    """Return the command of NeuroShard's trainer that takes some steps, reports their times, and saves nothing.

    Args:
        command: of the training.
        steps: to take.
    """
    return [*command, "--trial-steps", str(steps)]


def torchrun_environment(
    job: DLRMTrainingJob,
    *,
    host: str,
    run_id: str,
    port: int | None = None,
    grace_seconds: int = GRACE_SECONDS,
    has_servers: bool = True,
    of_servers: bool | None = None,
) -> Mapping[str, str]:
    """Return torchrun's settings as the environment variables that it reads.

    Between nodes the rendezvous is static: node 0 holds the store, whichever node starts first waits for the others,
    and after the start no launcher depends on another one. Each node but the first also needs its number in
    NODE_RANK_VARIABLE. torchrun restarts nothing itself: a restart of all workers is decided and counted by what
    started them.

    Args:
        job: its world size and rendezvous.
        host: of node 0.
        run_id: sets workers of different attempts apart.
        port: of the store. If unset: the job's. ANY_PORT: torchrun binds a free one, which only a single node finds.
        grace_seconds: between the request to stop and the kill of a node's worker.
        has_servers: whether the plan has tables on the job's embedding servers, if it has any.
        of_servers: whether the node is one of embedding servers, and not one of trainers. If unset: both are processes
            of one node.
    """
    experimental, trainer = job.spec.experimental, job.spec.trainer
    rendezvous, servers = experimental.rendezvous, experimental.embedding_servers if has_servers else None
    num_nodes, num_processes = trainer.num_nodes, trainer.devices_per_node
    if servers is not None and of_servers is None:
        num_processes += servers.num_processes
    elif servers is not None:
        num_nodes += servers.replicas
        num_processes = servers.procs_per_replica if of_servers else num_processes
    own_port = rendezvous.port if port is None else port
    return {
        "PET_NNODES": str(num_nodes),
        "PET_NPROC_PER_NODE": str(num_processes),
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_BACKEND": "c10d" if own_port == ANY_PORT else "static",
        "PET_RDZV_ENDPOINT": f"{host}:{own_port}",
        "PET_RDZV_ID": run_id,
        "PET_RDZV_CONF": f"timeout={rendezvous.timeout_seconds}",
        SHUTDOWN_VARIABLE: str(shutdown_seconds(grace_seconds)),
        **({NODES_BEFORE_VARIABLE: str(trainer.num_nodes)} if of_servers else {}),
    }


_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+")


def run_id(uid: str, attempt: int) -> str:
    """Return torchrun's id of one attempt of a job, which its reports carry."""
    return f"{uid}-{attempt}"


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of `run_id`: a uid of Kubernetes, which is a UUID, and a number."""
    return _RUN_ID.fullmatch(text) is not None


def shutdown_seconds(grace_seconds: int) -> int:
    """Return torchrun's timeout for its processes within a grace period: all but 15 s of it, at least half."""
    return max(grace_seconds - _LAUNCHER_ENDS_WITHIN_S, grace_seconds // 2)


def worker_environment(*, plan_file: str, run_dir: str, data_dir: str) -> Mapping[str, str]:
    """Return the variables in which a trainer of your own finds its files."""
    return {PLAN_VARIABLE: plan_file, RUN_DIR_VARIABLE: run_dir, DATA_DIR_VARIABLE: data_dir}
