"""The command lines of a job's stages."""

import pytest
from neuroshard_api.job.stage_commands import (
    ANY_PORT,
    dense_command,
    planner_command,
    profiler_command,
    torchrun_environment,
    trainer_command,
    worker_environment,
)
from support import builders

TRAINER_FILES = {"job_file": "job.json", "plan_file": "plan.json", "run_dir": "run", "data_dir": "data"}


def test_the_profiler_is_told_its_files() -> None:
    """All else is in the job."""
    command = profiler_command(job_file="job.json", tables_file="tables.json", out_dir="profile", meet="node-0:29500")

    files = ["job.json", "tables.json", "--out", "profile"]
    assert command == ["python", "-m", "neuroshard_profiler", "profile", *files, "--meet", "node-0:29500"]


def test_the_planner_is_told_its_files() -> None:
    """All else is in the request."""
    command = planner_command(request_file="r.json", bundle_dir="b", plan_file="p.json", python="python3")

    options = ["--request", "r.json", "--bundle", "b", "--out", "p.json"]
    assert command == ["python3", "-m", "neuroshard_planner", *options]


@pytest.mark.parametrize(("name", "device"), [("h100-80gb", "cuda"), ("cpu-intel-xeon-processor", "cpu")])
def test_the_dense_part_is_counted_for_the_device_that_trains(name: str, device: str) -> None:
    """Its document is what the planner reads with the request."""
    command = dense_command(
        job_file="job.json", request_file="r.json", dense_file="d.json", device=builders.device_type(name=name)
    )
    plans = planner_command(request_file="r.json", bundle_dir="b", plan_file="p.json", dense_file="d.json")

    options = ["--tables", "r.json", "--device", device, "--out", "d.json"]
    assert command == ["python", "-m", "neuroshard_trainer.dense_profile", "job.json", *options]
    assert plans[plans.index("--dense") + 1] == "d.json"


def test_the_built_in_trainer_runs_under_torchrun() -> None:
    """A job's args come last."""
    command = trainer_command(builders.job(trainer={"args": ["--verbose"]}), **TRAINER_FILES)

    launcher = ["python", "-m", "neuroshard_trainer.launch", "-m", "neuroshard_trainer"]
    options = ["--plan", "plan.json", "--run-dir", "run", "--data-dir", "data", "--verbose"]
    assert command == [*launcher, "job.json", *options]


def test_a_trainer_of_ones_own_is_run_as_it_is() -> None:
    """Nothing of ours is put between its words; the files are in its environment."""
    job = builders.job(trainer={"command": ["torchrun", "/app/train.py"], "args": ["--fast"]})

    assert trainer_command(job, **TRAINER_FILES) == ["torchrun", "/app/train.py", "--fast"]
    assert worker_environment(plan_file="plan.json", run_dir="run", data_dir="data") == {
        "NEUROSHARD_PLAN": "plan.json",
        "NEUROSHARD_RUN_DIR": "run",
        "NEUROSHARD_DATA_DIR": "data",
    }


def test_torchrun_is_told_nodes_processes_and_meeting_point() -> None:
    """It never restarts workers itself: restarts are counted elsewhere."""
    job = builders.job(
        trainer={"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}},
        experimental={"rendezvous": {"port": 30000, "timeoutSeconds": 60}},
    )

    assert torchrun_environment(job, host="job-worker-0-0.job", run_id="job-0") == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "8",
        "PET_MAX_RESTARTS": "0",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": "job-worker-0-0.job:30000",
        "PET_RDZV_ID": "job-0",
        "PET_RDZV_CONF": "timeout=60",
        "PET_SHUTDOWN_TIMEOUT": "285",
    }


def test_processes_of_embedding_servers_are_started_after_the_trainers() -> None:
    """On one machine, with the trainers' launcher: global ranks are then trainers first."""
    servers = {"replicas": 2, "procsPerReplica": 3, "resources": {"limits": {"memory": "8Gi"}}, "tables": ["user"]}
    job = builders.job(trainer={"numProcPerNode": 2}, experimental={"pipeline": "None", "embeddingServers": servers})

    environment = torchrun_environment(job, host="localhost", run_id="job-0")

    assert environment["PET_NNODES"] == "1"
    assert environment["PET_NPROC_PER_NODE"] == "8"


@pytest.mark.parametrize(("of_servers", "processes", "before"), [(False, "2", None), (True, "3", "1")])
def test_servers_with_hosts_of_their_own_are_nodes_after_those_of_the_trainers(
    *, of_servers: bool, processes: str, before: str | None
) -> None:
    """All meet in one rendezvous, each node with the processes of its kind."""
    servers = {"replicas": 2, "procsPerReplica": 3, "resources": {"limits": {"memory": "8Gi"}}, "tables": ["user"]}
    trainer = {"numNodes": 1, "numProcPerNode": 2}
    job = builders.job(trainer=trainer, experimental={"pipeline": "None", "embeddingServers": servers})

    environment = torchrun_environment(job, host="localhost", run_id="job-0", of_servers=of_servers)

    assert (environment["PET_NNODES"], environment["PET_NPROC_PER_NODE"]) == ("3", processes)
    assert environment.get("NEUROSHARD_NODES_BEFORE") == before


def test_no_server_is_started_for_a_plan_without_tables_on_them() -> None:
    """A job may permit servers that its plan does not need."""
    servers = {"replicas": 2, "resources": {"limits": {"memory": "8Gi"}}, "policy": "IfNeeded"}
    job = builders.job(trainer={"numProcPerNode": 2}, experimental={"pipeline": "None", "embeddingServers": servers})

    environment = torchrun_environment(job, host="localhost", run_id="job-0", has_servers=False)

    assert environment["PET_NPROC_PER_NODE"] == "2"


@pytest.mark.parametrize(("grace", "shutdown"), [(300, 285), (3600, 3585), (30, 15), (10, 5), (1, 0)])
def test_torchrun_waits_for_its_processes_almost_as_long_as_the_grace_period(grace: int, shutdown: int) -> None:
    """It kills them before it is killed itself, and leaves them as much of the grace period as it can."""
    environment = torchrun_environment(builders.job(), host="localhost", run_id="job-0", grace_seconds=grace)

    assert environment["PET_SHUTDOWN_TIMEOUT"] == str(shutdown)


def test_a_port_may_be_given_instead_of_the_jobs() -> None:
    """On one machine another program may have taken it."""
    environment = torchrun_environment(builders.job(), host="localhost", run_id="job-0", port=41000)

    assert environment["PET_RDZV_ENDPOINT"] == "localhost:41000"


def test_any_port_is_chosen_by_torchrun() -> None:
    """A port that is looked for here and bound there could be taken by another program in between."""
    environment = torchrun_environment(builders.job(), host="localhost", run_id="job-0", port=ANY_PORT)

    assert (environment["PET_RDZV_BACKEND"], environment["PET_RDZV_ENDPOINT"]) == ("c10d", "localhost:0")
