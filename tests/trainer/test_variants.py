"""Variants of a model that train together, compared with the jobs that they are."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, with_variants
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.export import export, main
from neuroshard_trainer.serving import MODEL_FILE, exported_description, whole_state
from neuroshard_trainer.state.variant_checkpoint import take_out
from neuroshard_trainer.variants import Scores
from support import builders
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import TABLES, Cuts, job_data, plan_of, write_plan

TRAINER = "neuroshard_trainer.__main__:main"
VARIANTS: Sequence[dict[str, Any]] = (
    {"name": "base"},
    {"name": "fast", "training": {"denseLearningRate": "0.05", "seed": 3}},
    {"name": "clipped", "model": {"overArchLayerSizes": [12, 4]}, "training": {"gradientClipNorm": "0.01"}},
    {"name": "narrow", "model": {"embeddingDim": 8}},
)
RATES: Sequence[dict[str, Any]] = tuple(
    {"name": f"rate-{number}", "training": {"embeddingLearningRate": rate}}
    for number, rate in enumerate(("0.005", "0.02", "0.08", "0.02"))
)
SGD = {"model": {"embeddingOptimizer": "SGD"}, "training": {"denseOptimizer": "SGD", "denseLearningRate": "0.02"}}
ADAM = {"training": {"denseOptimizer": "Adam"}}
CUT: Mapping[int, Cuts] = {
    1: {},
    2: {"user": ((0, 16), (1, 16)), "country": ((1, 16),)},
    4: {"user": ((3, 20), (1, 12)), "item": ((2, 32),), "country": ((0, 4), (2, 12))},
}


class Trainings:
    """Trains a set of variants, and the jobs that they are, on some processes.

    Args:
        folder: of all files.
        ranks: to train on.
        count: processes.
    """

    def __init__(self, folder: Path, ranks: RankServer, count: int) -> None:
        self.folder = folder
        self._ranks = ranks
        self._count = count

    def job(self, variants: Sequence[Mapping[str, Any]], **spec: Any) -> DLRMTrainingJob:
        """Return a job with these variants, of 16 samples in a step."""
        sizes = {"batchSizePerDevice": 16 // self._count, **spec.get("model", {})}
        parts: dict[str, Any] = {**spec, "model": sizes}
        data = job_data(world_size=self._count, **parts)
        return DLRMTrainingJob.from_data({**data, "spec": {**data["spec"], "variants": list(variants)}})

    def train(self, job: DLRMTrainingJob, name: str, cuts: Cuts | None = None) -> str:
        """Train in a folder of this name, and return what rank 0 prints."""
        tables, variants = builders.table_set(*TABLES), job.spec.variants
        if variants is None:
            tables = job.spec.model.inline_tables("job") or tables
        cuts = CUT[self._count] if cuts is None else cuts
        widths = {table.name: table.embedding_dim for table in with_variants(tables, variants).tables}
        own = {
            prefix + table: shards
            for table, shards in cuts.items()
            for prefix in ([""] if variants is None else [f"{each.name}:" for each in variants])
            if sum(width for _, width in shards) == widths[prefix + table]
        }
        plan = plan_of(own, tables=with_variants(tables, variants).tables, world_size=self._count)
        file = self.folder / f"{name}.json"
        file.write_text(job.to_json())
        arguments = [str(file), "--plan", str(write_plan(self.folder, plan, f"{name}-plan.json"))]
        arguments += ["--run-dir", str(self.folder / name)]
        return self._ranks.succeed(TRAINER, arguments, folder=self.folder, count=self._count)

    def state(self, name: str, variant: str | None = None) -> dict[str, torch.Tensor]:
        """Return the tensors of the newest checkpoint: of a job, or of one variant of a set by its own names."""
        newest = max((self.folder / name / "checkpoints").glob("step-*"))
        return whole_state(newest, variant=variant)

    def export(self, job: DLRMTrainingJob, name: str, variant: str | None) -> Path:
        """Export a training, or one of its variants, and return the folder."""
        out = self.folder / f"{name}-{variant}-export"
        export(job, Plan.read(self.folder / f"{name}-plan.json"), self.folder / name, out, variant=variant)
        return out

    def progress(self, name: str) -> TrainingProgress:
        """Return the progress of a training."""
        return TrainingProgress.read(self.folder / name / "progress.json")


def furthest(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """Return the largest difference of two states, which have the same tensors."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture
def trainings(tmp_path: Path, ranks: RankServer) -> Callable[[int], Trainings]:
    """Trainings on a number of processes."""
    return lambda count: Trainings(tmp_path, ranks, count)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variants", "settings", "steps", "count"),
    [
        pytest.param(variants, settings, steps, count, id=f"{name}-{count}", marks=() if is_short else pytest.mark.long)
        for count in (1, 2, 4)
        for name, variants, settings, steps in (
            ("settings-sgd", VARIANTS, SGD, 50),
            ("rates-sgd", RATES, SGD, 50),
            ("settings-adam", VARIANTS, ADAM, 6),
            ("rates-adam", RATES, ADAM, 6),
        )
        for is_short in ((name, count) in {("settings-sgd", 2), ("rates-adam", 4)},)
    ],
)
def test_each_variant_has_the_weights_of_its_own_job(
    trainings: Callable[[int], Trainings],
    variants: Sequence[dict[str, Any]],
    settings: Mapping[str, Mapping[str, Any]],
    steps: int,
    count: int,
) -> None:
    """Rates, norms, heads, widths, and seeds of variants are their own, and so are the metrics of each."""
    here = trainings(count)
    training = {**settings["training"], "maxSteps": steps, "epochs": 3}
    job = here.job(variants, **{**settings, "training": training})
    here.train(job, "set")

    metrics = here.progress("set").metrics
    for name, own in expanded(job).items():
        here.train(own, name)
        alone = here.progress(name).metrics
        assert furthest(here.state("set", name), here.state(name)) < 1e-6, name
        for key in ("loss", "auc", "normalized_entropy"):
            assert metrics[f"{name}/{key}"] == pytest.approx(alone[key], abs=1e-5)
    best = min(expanded(job), key=lambda name: metrics[f"{name}/normalized_entropy"])
    assert metrics["auc"] == metrics[f"{best}/auc"]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_metrics_stay_those_of_its_own_job(trainings: Callable[[int], Trainings], count: int) -> None:
    """Rounding grows through Adam and row-wise Adagrad in single weights, and not in the AUC."""
    here = trainings(count)
    job = here.job(VARIANTS, training={"maxSteps": 200, "epochs": 1}, data={"numSamples": 6000})
    here.train(job, "set")

    metrics = here.progress("set").metrics
    for name, own in expanded(job).items():
        here.train(own, name)
        assert metrics[f"{name}/auc"] == pytest.approx(here.progress(name).metrics["auc"], abs=1e-4)


@pytest.mark.processes
@pytest.mark.slow
def test_a_variant_that_diverges_leaves_the_others_their_bits(trainings: Callable[[int], Trainings]) -> None:
    """It is named with its step, has no metrics from there on, and cannot be exported; training succeeds."""
    here = trainings(2)
    training = {**SGD["training"], "maxSteps": 30, "epochs": 3}
    others = VARIANTS[:3]
    here.train(here.job([*others, {"name": "bad"}], **{**SGD, "training": training}), "usual")
    bad = {"name": "bad", "training": {"denseLearningRate": "1e30"}}
    job = here.job([*others, bad], **{**SGD, "training": training})
    printed = here.train(job, "set")

    assert "step 5: variant 'bad' diverged" in printed
    for each in others:
        usual, found = here.state("usual", each["name"]), here.state("set", each["name"])
        assert usual.keys() == found.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in usual.items())
    progress = here.progress("set")
    assert progress.diverged == {"bad": 5}
    assert not [name for name in progress.metrics if name.startswith("bad/")]
    usual_metrics = here.progress("usual").metrics
    assert all(value == usual_metrics[name] for name, value in progress.metrics.items() if "/" in name)
    with pytest.raises(InputError, match="variant 'bad' has diverged"):
        here.export(job, "set", "bad")
    with pytest.raises(InputError, match="variant 'bad' has diverged"):
        take_out(job, Plan.read(here.folder / "set-plan.json"), here.folder / "set", here.folder / "out", variant="bad")


@pytest.mark.processes
@pytest.mark.slow
def test_a_variant_whose_loss_explodes_is_named_once(trainings: Callable[[int], Trainings]) -> None:
    """With the step in which it began; a rate beyond FP32 diverges, and ends nothing."""
    here = trainings(1)
    rates = {"base": "0.001", "high": "100", "over": "1e38"}
    variants = [{"name": name, "training": {"denseLearningRate": rate}} for name, rate in rates.items()]
    printed = here.train(here.job(variants, training={**ADAM["training"], "maxSteps": 15}), "set")

    assert printed.count("variant 'high': LossExploded: no column is known to be the cause; began in ") == 1
    assert "variant 'base'" not in printed
    assert here.progress("set").diverged == {"over": 5}
    assert {"base/auc", "high/auc"} <= here.progress("set").metrics.keys()


@pytest.mark.processes
@pytest.mark.slow
def test_a_variant_diverges_in_one_training_alone(trainings: Callable[[int], Trainings]) -> None:
    """One from before the step in which it diverged has it among the others again, with another rate."""
    here = trainings(1)

    def job(rate: str) -> DLRMTrainingJob:
        variants: list[dict[str, Any]] = [{"name": "base"}, {"name": "tried", "training": {"denseLearningRate": rate}}]
        again = {"experimental": {"checkpoint": {"resumePolicy": "None"}}}
        return here.job(variants, **SGD | {"training": {**SGD["training"], "maxSteps": 10}}, **again)

    here.train(job("1e30"), "set")
    assert here.progress("set").diverged == {"tried": 5}
    here.train(job("0.01"), "set")

    progress = here.progress("set")
    assert progress.diverged is None
    assert {"tried/loss", "tried/auc"} <= progress.metrics.keys()


def test_training_fails_where_all_variants_diverge() -> None:
    """As that of one model does."""
    scores = Scores(["one", "two"], {"one": 3})

    with pytest.raises(InputError, match="step 9: all variants have diverged"):
        scores.losses(9, [0.5, float("nan")])


@pytest.mark.processes
@pytest.mark.slow
def test_a_set_resumes_under_another_plan_and_exports_each_variant(trainings: Callable[[int], Trainings]) -> None:
    """The checkpoint is of no number of processes, and an export of a variant is that of its own job."""
    training = {**SGD["training"], "epochs": 3}
    two, four = trainings(2), trainings(4)
    settings = {**SGD, "training": {**training, "maxSteps": 20}}
    here = {2: two.job(VARIANTS, **settings), 4: four.job(VARIANTS, **settings)}
    half = two.job(VARIANTS, **{**SGD, "training": {**training, "maxSteps": 10}})
    two.train(here[2], "whole")
    two.train(half, "run")
    assert "going on from step 10" in four.train(here[4], "run")

    for name, own in expanded(here[2]).items():
        assert furthest(two.state("whole", name), four.state("run", name)) < 1e-6, name
        two.train(own, name)
        files = [two.export(here[2], "whole", name), two.export(own, name, None)]
        ours, alone = (exported_description(each) for each in files)
        assert (ours.model, ours.tables, ours.features) == (alone.model, alone.tables, alone.features)
        models = [torch.load(each / MODEL_FILE, weights_only=True) for each in files]
        assert furthest(*models) < 1e-6
    with pytest.raises(InputError, match="--variant: is missing, and the job has base, fast"):
        two.export(here[2], "whole", None)
    with pytest.raises(InputError, match="the job has no variants; hint: leave it out"):
        two.export(expanded(here[2])["base"], "base", "fast")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [SGD, ADAM], ids=["sgd", "adam"])
def test_one_variant_resumes_alone(trainings: Callable[[int], Trainings], optimizer: Mapping[str, Any]) -> None:
    """Its part of the set's checkpoint has the state of both optimizers, and the place in the samples."""
    here = trainings(2)

    def job(steps: int) -> DLRMTrainingJob:
        training = {**optimizer["training"], "epochs": 3, "maxSteps": steps}
        return here.job(VARIANTS, **{**optimizer, "training": training})

    here.train(job(4), "set")
    plan, out = Plan.read(here.folder / "set-plan.json"), here.folder / "taken"
    arguments = [here.folder / "set.json", "--plan", here.folder / "set-plan.json", "--run-dir", here.folder / "set"]
    arguments += ["--out", out, "--variant", "clipped", "--resumable"]
    assert main(list(map(str, arguments))) is ExitCode.OK
    own = expanded(job(8))["clipped"]
    assert DLRMTrainingJob.from_data(json.loads((out / "job.json").read_text())) == expanded(job(4))["clipped"]
    assert "going on from step 4" in here.train(own, "taken")
    here.train(own, "alone")

    assert furthest(here.state("taken"), here.state("alone")) < 1e-6
    with pytest.raises(InputError, match="'other', and the job has base, fast, clipped, narrow"):
        take_out(job(4), plan, here.folder / "set", out, variant="other")
