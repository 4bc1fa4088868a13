"""Jobs that cannot be trained: the sentence and the exit code of each."""

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.request import MemorySettings
from neuroshard_api.documents.tables import DataType
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.__main__ import main
from support.trainer.trained_runs import Run
from support.trainer.trainer_builders import job_data, plan_of, write_job, write_plan


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"data": {"format": "CriteoTSV", "path": "none.tsv", "numSamples": None}}, "none.tsv does not exist"),
        ({"data": {"format": "Parquet", "path": "x.csv", "numSamples": None}}, "x.csv: is not a Parquet file"),
        ({"model": {"batchSizePerDevice": 400}}, "there are 360 training samples and one step takes 400"),
        ({"model": {"embeddingOptimizer": "Adam"}}, "FBGEMM has no training kernel with adam"),
        ({"training": {"steps": 3}}, "spec.training.steps: is not a known key"),
        (
            {"training": {"embeddingLearningRate": "1e30"}},
            "the loss is nan; began in samples 16 to 31 (step 1); hint: lower spec.training.embeddingLearningRate",
        ),
    ],
    ids=["no data", "other data", "too little data", "no kernel", "unknown field", "diverges"],
)
def test_a_job_that_cannot_be_trained_ends_in_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: dict[str, Any], expected: str
) -> None:
    """One line, which begins with the rank, and the code of invalid input."""
    (tmp_path / "x.csv").write_text("a,b\n")

    assert run(**spec) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: rank 0: ")
    assert expected in line


def test_a_model_that_diverges_in_the_last_step_ends_in_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss was finite before the step; the evaluation finds out, and the checkpoint of the step is named."""
    assert run(training={"embeddingLearningRate": "1e30", "maxSteps": 1}) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.search(r"step 1: \d+ of 40 logits of the evaluation are not finite; hint: lower spec.training", line)
    assert f"remove {tmp_path / 'run' / 'checkpoints' / 'step-00000001'} to start from the first step" in line


def test_an_id_out_of_range_is_named(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File, row, feature, and the rows that there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 100
    columns: dict[str, list[Any]] = {name: [0] * count for name in ("label", "item", "country")}
    columns |= {f"dense_{position}": [0.5] * count for position in range(3)}
    pq.write_table(pa.table({**columns, "user": [[5]] * 40 + [[1, 60]] * 60}), tmp_path / "x.parquet")

    assert run(data={"format": "Parquet", "path": "x.parquet", "numSamples": None}) == ExitCode.INVALID_INPUT

    found = re.search(
        r"x.parquet row (\d+): 'user' looks up row 60, table 'user' has rows 0 to 59", capsys.readouterr().err
    )
    assert found is not None
    assert 40 <= int(found[1]) < 100


def test_a_job_for_gpus_is_not_trained_on_a_cpu(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless it is asked for, before any process is met."""
    gpus = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}}
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    assert run(trainer=gpus) == ExitCode.INVALID_INPUT
    assert "spec.trainer.resourcesPerNode asks for 1 GPUs per node, but" in capsys.readouterr().err

    assert run("--device", "cpu", trainer=gpus, training={"maxSteps": 1}) == ExitCode.OK


def test_a_plan_whose_gradients_would_vanish_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pooled embeddings of FP16 have gradients of FP16."""
    write_plan(tmp_path, plan_of(memory=MemorySettings(output_data_type=DataType.FP16)))

    assert run() == ExitCode.INVALID_INPUT

    assert "pooled embeddings of type FP16, in which gradients of a mean loss become 0" in capsys.readouterr().err


def test_narrow_types_without_held_out_samples_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would see what they do to the accuracy."""
    write_plan(tmp_path, plan_of(wire=WireTypes(forward=WireType.INT8)))

    assert run(data={"validationPercent": 0}) == ExitCode.INVALID_INPUT

    assert "INT8 forward, FP32 backward, and there are no held-out samples to guard" in capsys.readouterr().err


def test_a_plan_for_more_processes_is_refused(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence has both numbers."""
    write_plan(tmp_path, plan_of(world_size=2))

    assert run() == ExitCode.INVALID_INPUT

    assert "is for 2 devices, there are 1 processes" in capsys.readouterr().err


def test_a_taken_metrics_port_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Before training."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - where the server would listen
        taken.listen()

        assert run("--metrics-port", str(taken.getsockname()[1])) == ExitCode.INVALID_INPUT

    assert "cannot be served (Address already in use)" in capsys.readouterr().err


def test_an_unreadable_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the file's name."""
    places = ["--plan", "plan.json", "--run-dir", str(tmp_path)]

    assert main([str(tmp_path / "job.yaml"), *places]) == ExitCode.INVALID_INPUT

    assert "job.yaml: does not exist" in capsys.readouterr().err


def test_without_torchrun_the_trainer_says_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is one process of several."""
    monkeypatch.delenv("RANK", raising=False)
    job = write_job(tmp_path, job_data())

    assert main([str(job), "--plan", "plan.json", "--run-dir", str(tmp_path)]) == ExitCode.INVALID_INPUT

    assert "RANK is not set; hint: start with `torchrun" in capsys.readouterr().err


def test_a_run_directory_that_is_a_file_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a matter of storage."""
    (tmp_path / "run").touch()

    assert run() == ExitCode.STORAGE

    assert "cannot be written: File exists" in capsys.readouterr().err
