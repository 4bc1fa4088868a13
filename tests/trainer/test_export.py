"""Models for serving, from checkpoints of real trainings."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.process.errors import StorageError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.export import export, main
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.model.dlrm import RecommendationModel
from neuroshard_trainer.serving import QuantizedType
from neuroshard_trainer.training import TrainingLoop
from support.trainer.trainer_builders import Cuts, job_data, plan_of, write_job, write_plan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

Run = Callable[..., ExitCode]
Evaluated = list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]
"""Dense features, lookups, and the live sharded model's logits."""
TRAINING = {"embeddingLearningRate": "0.5", "epochs": 3}
CUTS: Cuts = {"user": ((0, 4), (0, 28)), "item": ((0, 16), (0, 16))}


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """Batches of evaluations, with what the sharded model makes of them while it trains."""
    seen: Evaluated = []
    logits_of = TrainingLoop._logits

    def logits(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        found = logits_of(loop, batch)
        if not torch.is_grad_enabled():
            seen.append((batch.dense, batch.lookups, found))
        return found

    monkeypatch.setattr(TrainingLoop, "_logits", logits)
    return seen


def exported(folder: Path, run_dir: str = "run", **options: Any) -> ExportedModel:
    """Export a run to ``out``."""
    return export(
        read_job(folder / "job.yaml"), Plan.read(folder / "plan.json"), folder / run_dir, folder / "out", **options
    )


@pytest.mark.parametrize(
    ("architecture", "cuts"),
    [("DLRM", {}), ("DLRM", CUTS), ("DCNv2", CUTS), ("Wukong", {})],
    ids=["DLRM, whole", "DLRM, cut", "DCNv2, cut", "Wukong, whole"],
)
def test_the_plain_state_computes_the_sharded_models_logits(
    run: Run, tmp_path: Path, evaluated: Evaluated, architecture: str, cuts: Cuts
) -> None:
    """Read by torch alone into an unsharded model, without any process group."""
    write_plan(tmp_path, plan_of(cuts))
    assert run(training={**TRAINING, "evalEverySteps": 1000}, model={"architecture": architecture}) == ExitCode.OK

    description = exported(tmp_path)

    job, plan = read_job(tmp_path / "job.yaml"), Plan.read(tmp_path / "plan.json")
    model = RecommendationModel(job.spec.model, plan.request.tables.tables)
    model.load_state_dict(torch.load(tmp_path / "out" / "model.pt", weights_only=True), assign=True)
    assert description == ExportedModel.read(tmp_path / "out" / "model.json")
    assert description.features == ("user", "item", "country")
    for dense, lookups, logits in evaluated:
        torch.testing.assert_close(model.eval()(dense, lookups), logits, rtol=1e-5, atol=1e-5)


def test_the_quantized_model_computes_nearly_the_same(run: Run, tmp_path: Path, evaluated: Evaluated) -> None:
    """Loaded as TorchScript; its logits differ by the rounding of the tables only, which is some of it."""
    write_plan(tmp_path, plan_of(CUTS))
    assert run(training={**TRAINING, "evalEverySteps": 1000}) == ExitCode.OK
    spread = torch.cat([logits for *_, logits in evaluated]).std()

    for kind, largest_error in {QuantizedType.FP16: 2e-3, QuantizedType.INT8: 2e-2, QuantizedType.INT4: 0.5}.items():
        assert exported(tmp_path, quantized_type=kind).quantized_type == kind

        served = torch.jit.load(tmp_path / "out" / "quantized.pt")  # type: ignore[no-untyped-call] # torch's
        errors = torch.cat([(served(dense, lookups) - logits).abs() for dense, lookups, logits in evaluated])
        assert 0 < errors.max() < largest_error * spread


@pytest.mark.slow
def test_the_form_of_deduplication_makes_no_other_export(run: Run, tmp_path: Path) -> None:
    """From one checkpoint on all lists, without repeats, and in a collection of the group's own: the same tensors."""
    sessions = {"samplesPerSession": 10, "groups": [{"features": ["user", "country"], "changeProbability": "0.1"}]}
    data, experimental = {"numSamples": 400}, {"data": {"syntheticSessions": sessions}}
    assert run(data=data, experimental=experimental, training={"maxSteps": 5}, run_dir="begun") == ExitCode.OK
    states, described = [], []
    for form in (None, *DeduplicationForm):
        group = form and DeduplicatedGroup(group="user", features=("user", "country"), factor=4.0, form=form)
        write_plan(tmp_path, plan_of().model_copy(update={"deduplication": group and (group,)}))
        name = f"run-{form}"
        shutil.copytree(tmp_path / "begun", tmp_path / name)
        assert run(data=data, experimental=experimental, training={"maxSteps": 15}, run_dir=name) == ExitCode.OK
        described.append(exported(tmp_path, name).model_copy(update={"plan_sha256": ""}))
        states.append(torch.load(tmp_path / "out" / "model.pt", weights_only=True))

    assert described[1] == described[2] == described[0]
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        for parameter, found in state.items():
            torch.testing.assert_close(found, states[0][parameter], rtol=1e-5, atol=1e-5)


def test_an_export_replaces_the_whole_earlier_one(run: Run, tmp_path: Path) -> None:
    """No quantized model of another step is left next to a new state."""
    assert run(training={"maxSteps": 1}) == ExitCode.OK
    exported(tmp_path, quantized_type=QuantizedType.INT8)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.json",
        "model.pt",
        "predict.py",
        "quantized.pt",
    ]

    exported(tmp_path)

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.json", "model.pt", "predict.py"]


def test_an_export_that_fails_leaves_the_earlier_one(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, also where the failure comes after the state was written."""
    assert run(training={"maxSteps": 1}) == ExitCode.OK
    exported(tmp_path, quantized_type=QuantizedType.INT8)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert run(training={"maxSteps": 2}) == ExitCode.OK

    def full(path: Path, _text: str) -> None:
        raise StorageError(f"{path}: the disk is full")

    monkeypatch.setattr("neuroshard_trainer.export.write_file", full)
    with pytest.raises(StorageError):
        exported(tmp_path)

    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("max_steps", [1, None], ids=["another model", "no checkpoint"])
def test_what_cannot_be_exported_is_a_sentence(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], max_steps: int | None
) -> None:
    """The parameter that differs is named; without a checkpoint, the folder."""
    if max_steps:
        assert run(training={"maxSteps": max_steps}) == ExitCode.OK
    job = write_job(tmp_path, job_data(model={"overArchLayerSizes": [4]}))

    places = ["--plan", tmp_path / "plan.json", "--run-dir", tmp_path / "run", "--out", tmp_path / "out"]
    assert main([str(job), *map(str, places)]) == ExitCode.INVALID_INPUT

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    if max_steps:
        assert "parameter over_arch.model.0._mlp.0._linear.bias is (8,) in the checkpoint and (4,)" in line
    else:
        assert f"{tmp_path / 'run' / 'checkpoints'}: holds no whole checkpoint" in line
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_not_exported(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The one before it is, with a warning."""
    assert run(checkpoint={"everySteps": 5}, training={"maxSteps": 10}) == ExitCode.OK
    (tmp_path / "run" / "checkpoints" / "step-00000010" / "__0_0.distcp").write_bytes(b"")

    assert exported(tmp_path).step == 5

    assert "step-00000010 is damaged" in caplog.text


def test_a_full_disk_leaves_no_half_a_model(run: Run, tmp_path: Path, small_disk: Path) -> None:
    """The sentence is that of storage, and an earlier export stays as it was."""
    assert run(training={"maxSteps": 1}) == ExitCode.OK
    job, plan = read_job(tmp_path / "job.yaml"), Plan.read(tmp_path / "plan.json")
    export(job, plan, tmp_path / "run", small_disk / "out")
    before = (small_disk / "out" / "model.pt").read_bytes()
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - len(before) // 2))

    with pytest.raises(StorageError, match=r"model\.pt: "):
        export(job, plan, tmp_path / "run", small_disk / "out")

    assert [path.name for path in (small_disk / "out").glob("*model.pt*")] == ["model.pt"]
    assert (small_disk / "out" / "model.pt").read_bytes() == before
