"""Specification of ``python -m neuroshard_profiler``: whole runs, as a pod makes them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.stage_commands import profiler_command
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_costs.bundle import load_bundle
from neuroshard_costs.fitting.fit import MIN_RECORDS
from neuroshard_costs.fitting.records import read_records
from neuroshard_planner.pipeline import plan
from neuroshard_profiler.__main__ import main
from neuroshard_profiler.benches.launch import BATCH_SIZES, NUM_TABLES
from support.builders import job, table_set, tables
from support.mounts import mounted
from support.profiler.record_builders import compute_record, written

EXAMPLES = Path(__file__).parents[2] / "examples"
SIMULATED = ("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=h100-80gb")
OF_PARTS = ("--backend", "simulated", "--device-type", "h100-80gb")
"""The same for a part of a profile."""
UNKNOWN = ("--set", "spec.profiler.deviceType=h1000")


@pytest.fixture
def tables_file(tmp_path: Path) -> Path:
    """Return a file of four tables."""
    path = tmp_path / "tables.json"
    path.write_text(table_set().to_json(), encoding="utf-8")
    return path


def test_a_simulated_profile_is_whole(tmp_path: Path, tables_file: Path) -> None:
    """Records, hardware and a bundle that fit each other, all labelled simulated."""
    out = tmp_path / "profile"
    options = [str(tables_file), "--out", str(out), "--max-records", "30"]
    options += ["--set", "spec.trainer.numProcPerNode=8"]

    assert main(["profile", *SIMULATED, *options]) == ExitCode.OK
    hardware, manifest = Hardware.read(out / "hardware.json"), load_bundle(out / "bundle").manifest
    assert hardware.source == manifest.source == "simulated:NVIDIA-H100-80GB-HBM3"
    assert (hardware.device.name, hardware.devices_per_node) == ("h100-80gb", 8)
    assert len(read_records(out / "records" / "compute.jsonl")) == 30
    assert len(read_records(out / "records" / "communication.jsonl")) == 30
    assert hardware.inter_node is None
    assert Topology.read(out / "topology.json") == hardware.topology(num_nodes=1, devices_per_node=8)
    assert manifest.calibration is not None


@pytest.mark.processes
def test_a_simulated_profile_needs_neither_torch_nor_scipy(tmp_path: Path) -> None:
    """The image of a mocked profiler is small."""
    command = ["profile", *SIMULATED, "--out", str(tmp_path / "profile"), "--max-records", "20"]
    code = (
        "import sys\nfrom neuroshard_profiler.__main__ import main\n"
        f"assert main({command!r}) == 0\n"
        "print(*sorted({'torch', 'scipy', 'pyarrow', 'matplotlib', 'fbgemm_gpu'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert result.stdout.splitlines()[-1] == ""


@pytest.mark.processes
def test_a_killed_run_is_gone_on_with(tmp_path: Path) -> None:
    """After kill -9 the file holds whole records, and the rest is measured as if nothing had happened."""
    path, whole = tmp_path / "killed.jsonl", tmp_path / "whole.jsonl"
    command = ["collect-compute", *OF_PARTS, "--max-records", "100000", "--budget", "10m", "--out", str(path)]
    process = subprocess.Popen([sys.executable, "-m", "neuroshard_profiler", *command])
    while not (path.exists() and path.read_bytes().count(b"\n") >= 5):
        assert process.poll() is None
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.wait()
    with path.open("ab") as file:
        file.write(b'{"schema_version": "profile-record/v1", "comp')
    finished = path.read_bytes().count(b"\n") + 3

    for target in (path, whole):
        options = ["--max-records", str(finished), "--out", str(target)]
        assert main(["collect-compute", *OF_PARTS, *options]) == ExitCode.OK
    assert [record.model_copy(update={"elapsed_seconds": None}) for record in read_records(path)] == [
        record.model_copy(update={"elapsed_seconds": None}) for record in read_records(whole)
    ]


def test_a_run_that_goes_on_has_what_is_left_of_the_budget(tmp_path: Path) -> None:
    """Where nothing is left, it measures no more than what a fit needs."""
    path = tmp_path / "compute.jsonl"
    command = ["collect-compute", *OF_PARTS, "--out", str(path), "--budget", "1h"]
    assert main([*command, "--max-records", "3"]) == ExitCode.OK
    *others, last = path.read_text(encoding="utf-8").splitlines()
    spent = ProfileRecord.from_json(last).model_copy(update={"elapsed_seconds": 3600.5})
    path.write_text("\n".join([*others, spent.model_dump_json(exclude_none=True), ""]), encoding="utf-8")

    assert main([*command, "--max-records", "1000"]) == ExitCode.OK
    elapsed = [record.elapsed_seconds or 0.0 for record in read_records(path)]
    assert len(elapsed) == MIN_RECORDS
    assert elapsed[2] == 3600.5
    assert elapsed[2:] == sorted(elapsed[2:])


def test_a_job_and_large_tables_are_read_as_their_config_map_holds_them(tmp_path: Path) -> None:
    """The tables compressed, since they are above half a megabyte; the records are those of the plain files."""
    members = table_set(*tables(1500, reuse_histogram=(0.5, *[1 / 32] * 16)))
    profiler = {"deviceType": "h100-80gb", "backend": "Simulated"}
    text = job("job", profiler=profiler).model_dump_json(by_alias=True, exclude_none=True)
    folder = mounted({"job.json": text.encode(), "tables.json": members.to_json().encode()}, tmp_path / "files")
    assert sorted(path.name for path in folder.iterdir()) == ["job.json", "tables.json.gz"]
    plain = tmp_path / "tables.json"
    plain.write_text(members.to_json(), encoding="utf-8")

    measured = []
    for file in (folder / "tables.json.gz", plain):
        out = tmp_path / f"profile-of-{file.name}"
        options = [str(file), "--out", str(out), "--max-records", "12"]
        assert main(["profile", str(folder / "job.json"), *options]) == ExitCode.OK
        records = read_records(out / "records" / "compute.jsonl")
        measured.append([record.compute for record in records])
    assert measured[0] == measured[1]


@pytest.mark.processes
@pytest.mark.torch
@pytest.mark.torchrec
@pytest.mark.slow
def test_this_cpu_is_profiled_and_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real FBGEMM kernels, and a real all-to-all of two processes that torchrun starts, become a plan."""
    job_file, tables_file, out = EXAMPLES / "02-movielens.yaml", tmp_path / "tables.json", tmp_path / "profile"
    job = DLRMTrainingJob.from_data(read_data(job_file))
    tables = job.spec.model.inline_tables("movielens")
    assert tables is not None
    tables_file.write_text(tables.to_json(), encoding="utf-8")
    command = profiler_command(
        job_file=str(job_file), tables_file=str(tables_file), out_dir=str(out), python=sys.executable
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    assert command[1:3] == ["-m", "neuroshard_profiler"]
    assert main([*command[3:], "--max-records", "30", "--budget", "10s"]) == ExitCode.OK
    hardware, bundle = Hardware.read(out / "hardware.json"), load_bundle(out / "bundle")
    assert hardware.source == bundle.manifest.source
    assert hardware.source.startswith("cpu:")
    assert hardware.intra_node is not None
    assert hardware.intra_node.bandwidth_bytes_per_second > 1e6
    assert hardware.inter_node is None
    transfers = read_records(out / "records" / "communication.jsonl")
    assert {len(record.device_ms) for record in transfers} == {2}
    assert len(read_records(out / "records" / "launch.jsonl")) == len(NUM_TABLES) * len(BATCH_SIZES)
    assert bundle.manifest.training["launch"] == "measured"
    assert bundle.manifest.launch.host_ms == (0.0, 0.0)
    parts = sorted((out / "records").glob("compute*.jsonl"))
    assert len(parts) == min(2, len(os.sched_getaffinity(0)))
    assert {record.compute.optimizer for path in parts for record in read_records(path) if record.compute} == {
        job.spec.model.embedding_optimizer.optimizer
    }
    topology = hardware.topology(num_nodes=1, devices_per_node=2)
    made = plan(plan_request(job, tables=tables, topology=topology), bundle=bundle)
    assert made.predicted.source == hardware.source
    assert made.predicted.total_ms > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["profile", "--out", "x", *SIMULATED[:2]], 2, "backend Simulated needs the deviceType"),
        (["profile", "--out", "x", *SIMULATED, "--budget", "soon"], 2, "budget: 'soon' is not a duration"),
        (["profile", "--out", "x", *SIMULATED[:2], *UNKNOWN], 2, "device type 'h1000' is not known"),
        (["profile", "nowhere.yaml", "--out", "x"], 2, "nowhere.yaml: does not exist"),
        (["profile", "a.json", "b.json", "--out", "x"], 2, "a.json, b.json: a profile is for one job with one set of"),
        (["profile"], 2, "--out"),
        (["profile", *SIMULATED, "--out", "/dev/null/x"], 2, "cannot be a folder here"),
        (["collect-comm", "--out", "x"], 2, "found itself alone\nhint: start it with `torchrun"),
        (["fit", "nowhere.jsonl", "--hardware", "h.json", "--out", "x"], 2, "nowhere.jsonl: cannot be read"),
    ],
    ids=["no device", "budget", "unknown device", "no job", "two sets", "no out", "no folder", "alone", "no records"],
)
def test_a_mistake_is_told_in_a_sentence(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of the neuroshard command, and without a traceback."""
    assert main(arguments) == code
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told


def test_records_are_fitted_again_without_measuring(tmp_path: Path) -> None:
    """Under another seed or base, or after records of several runs were joined."""
    out = tmp_path / "profile"
    assert main(["profile", *SIMULATED, "--out", str(out), "--max-records", "20"]) == ExitCode.OK
    options = ["--hardware", str(out / "hardware.json"), "--out", str(tmp_path / "again")]

    assert main(["fit", str(out / "records" / "compute.jsonl"), *options]) == ExitCode.OK
    assert load_bundle(tmp_path / "again").manifest.device.name == "h100-80gb"


def test_a_folder_of_an_earlier_release_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its records are in a file that this run would not continue, since all are fitted together."""
    out = tmp_path / "profile"
    (out / "records").mkdir(parents=True)
    earlier = written(out / "records", compute_record()).rename(out / "records" / "compute-0-of-7.jsonl")

    assert main(["profile", *SIMULATED, "--out", str(out), "--max-records", "20"]) == ExitCode.INVALID_INPUT
    assert f"{earlier}: holds records of measuring method 1" in capsys.readouterr().err
    assert list((out / "records").iterdir()) == [earlier]
