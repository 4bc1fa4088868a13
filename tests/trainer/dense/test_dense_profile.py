"""The dense part as it is counted under fake tensors; every number is from a real run of torch's trackers."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.batch_choice import BatchChoices, read_dense
from neuroshard_api.documents.dense_layout import DenseGroup, DenseStrategy, PlannedUnit
from neuroshard_api.documents.dense_profile import DenseProfile, features_sha256
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer import dense_profile as counting
from neuroshard_trainer.dense.operators import operators_of
from neuroshard_trainer.dense.parallel import split_operators
from neuroshard_trainer.dense.trackers import counted_passes
from neuroshard_trainer.dense_profile import dense_profile, describe_dense, main
from support import builders
from support.trainer.own_models import SAMPLES, described, own_tables
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def job_of(**model: Any) -> DLRMTrainingJob:
    """Return a job with two tables of width 8; the dense layers are 3 x 8 and 5 wide."""
    tables = [{"name": name, "numEmbeddings": 100, "embeddingDim": 8} for name in ("t0", "t1")]
    sizes = {"numDenseFeatures": 3, "denseArchLayerSizes": [8, 8], "overArchLayerSizes": [5]}
    raw = builders.job_data(model={"embeddingTables": tables, "batchSizePerDevice": SAMPLES, **sizes, **model})
    return validated(DLRMTrainingJob, raw, where="job")


def freshly_counted(job: DLRMTrainingJob, *, multi_tensor: bool = True) -> DenseProfile:
    """Return the job's dense part, counted now: a process counts equal ones once."""
    counting._COUNTED.clear()
    tables = job.spec.model.inline_tables("tables")
    assert tables is not None
    return dense_profile(job, tables, multi_tensor=multi_tensor)


WUKONG = job_of(
    architecture="Wukong", wukong={"numLayers": 3, "numInteractions": 4, "lowRankDim": 3, "layerSizes": [10]}
)
_COUNTED: dict[tuple[str, bool], DenseProfile] = {}


def counted(job: DLRMTrainingJob, *, multi_tensor: bool = True) -> DenseProfile:
    """Return the job's dense part, which the tests of this file count once."""
    key = job.to_json(), multi_tensor
    if key not in _COUNTED:
        _COUNTED[key] = freshly_counted(job, multi_tensor=multi_tensor)
    return _COUNTED[key]


def test_parameters_are_counted_layer_by_layer() -> None:
    """Weights and biases of every layer, and the state of Adam, are exactly as many bytes as torch holds."""
    profile = counted(job_of(architecture="DCNv2", crossNetwork={"numLayers": 2, "lowRankDim": 4}))

    dense = (3 * 8 + 8) + 2 * (8 * 8 + 8)
    cross = 2 * (24 * 4 + 4 * 24 + 24)
    over = (24 * 5 + 5) + (5 + 1)
    assert profile.num_parameters == dense + cross + over
    assert profile.weights_bytes == profile.gradient_bytes == 4 * profile.num_parameters
    num_steps_of_adam = 4 * 16  # one number for each of the 16 parameters
    assert profile.optimizer_state_bytes == 8 * profile.num_parameters + num_steps_of_adam
    crosses = [unit for unit in profile.units if unit.module.startswith("interaction.")]
    assert {(unit.num_parameters, unit.largest_tensor_parameters) for unit in crosses} == {(cross // 2, 24 * 4)}


@pytest.mark.parametrize("architecture", ["DLRM", "DCNv2", "Wukong"])
def test_a_model_without_dense_features_has_the_layers_above_alone(architecture: str) -> None:
    """DLRM's over layers take two embeddings and their dot product."""
    profile = counted(job_of(architecture=architecture, numDenseFeatures=0))
    modules = {unit.module.partition(".")[0] for unit in profile.units}

    assert "dense_arch" not in modules
    assert profile.input_bytes == 0
    if architecture == "DLRM":
        assert profile.weights_bytes == 4 * ((17 * 5 + 5) + (5 + 1)) + 8 + 4 * 8  # and the places of the only pair


def test_equal_layers_are_one_unit() -> None:
    """Layers 2 and 3 of the dense arch have equal sizes, so that one unit repeats."""
    units = {unit.module: unit for unit in counted(job_of()).units}

    assert units["dense_arch.model._mlp.0"].num_parameters == 3 * 8 + 8
    assert units["dense_arch.model._mlp.1"].repeats == 2
    assert units["dense_arch.model._mlp.1"].further_modules == ("dense_arch.model._mlp.2",)
    assert units["dense_arch.model._mlp.0"].further_modules is None
    assert [name for name in units if name.startswith("tables")] == []


def test_work_is_that_of_the_matrix_products() -> None:
    """A layer of 8 x 8 takes 2 x 8 x 8 operations per sample forward, twice as many backward."""
    layer = next(unit for unit in counted(job_of()).units if unit.module == "dense_arch.model._mlp.1")

    assert layer.forward_flops == 2 * 8 * 8 * SAMPLES
    assert layer.backward_flops == 2 * layer.forward_flops
    assert layer.input_bytes == layer.output_bytes == layer.activation_bytes == 4 * 8 * SAMPLES


def test_operations_are_those_that_launch_kernels() -> None:
    """A layer has a product and an activation forward; two products, a sum, and an activation's gradient backward."""
    two, one = (counted(job_of(denseArchLayerSizes=[8] * number, architecture="DLRM")).passes for number in (2, 1))
    assert two is not None
    assert one is not None

    assert two.num_tensors - one.num_tensors == 2
    assert (two.forward.operations - one.forward.operations, two.forward.products - one.forward.products) == (2, 1)
    assert (two.backward.operations - one.backward.operations, two.backward.products - one.backward.products) == (4, 2)
    assert two.optimizer == one.optimizer.model_copy(update={"moved_bytes": two.optimizer.moved_bytes})
    activation = 2 * SAMPLES * 8 * 4
    assert two.forward.moved_bytes - one.forward.moved_bytes == activation


def test_an_optimizer_without_multi_tensor_calls_operations_for_each_tensor() -> None:
    """As on a CPU, where launches cost nothing."""
    several, alone = (counted(job_of(), multi_tensor=kind).passes for kind in (True, False))
    assert several is not None
    assert alone is not None

    assert alone.optimizer.operations > several.optimizer.operations


def test_twice_the_batch_needs_twice_the_activations() -> None:
    """Weights, gradients and state stay as they are."""
    small, large = counted(job_of()), counted(job_of(batchSizePerDevice=2 * SAMPLES))

    assert large.weights_bytes == small.weights_bytes
    assert large.working_bytes == pytest.approx(2 * small.working_bytes, rel=0.1)
    assert [unit.activation_bytes for unit in large.units] == [2 * unit.activation_bytes for unit in small.units]


def test_a_wide_part_at_a_small_batch_peaks_in_the_optimizer() -> None:
    """Adam's temporary tensors are as large as all gradients where it updates them in one call."""
    job = job_of(overArchLayerSizes=[512, 512], batchSizePerDevice=1)

    assert counted(job).working_bytes >= counted(job).gradient_bytes
    assert counted(job, multi_tensor=False).working_bytes >= 2 * 4 * 512 * 512
    profile = counted(job)
    assert profile.passes_working_bytes is not None
    assert profile.optimizer_working_bytes is not None
    assert profile.passes_working_bytes < profile.optimizer_working_bytes <= profile.working_bytes


def test_each_layer_of_a_cross_network_is_a_unit() -> None:
    """So that it can be sharded and computed again alone; all of one size are one that repeats."""
    profile = counted(job_of(architecture="DCNv2", crossNetwork={"numLayers": 5, "lowRankDim": 4}))
    layers = [unit for unit in profile.units if unit.module.startswith("interaction.interaction.layers.")]

    assert sum(unit.repeats for unit in layers) == 5
    assert len(layers) == 1
    assert {unit.num_parameters for unit in layers} == {24 * 4 + 4 * 24 + 24}
    assert {unit.backward_flops / unit.forward_flops for unit in layers} == {2}, "though all share an input"
    assert profile.passes_working_bytes == profile.working_bytes, "a large batch peaks in the passes"


def test_each_layer_of_wukong_is_a_unit() -> None:
    """With its dot products, linear combinations, and norms; all that take what they return are one that repeats."""
    profile = counted(WUKONG)
    layers = [unit for unit in profile.units if unit.module.startswith("interaction.")]

    def parameters(inputs: int, shortcut: int) -> int:
        mlp = (3 * inputs * 10 + 10) + (10 * 4 * 8 + 4 * 8)
        return inputs * (3 + 4) + shortcut + 2 * (3 * inputs) + mlp + 2 * 8

    def flops(inputs: int, shortcut: int) -> int:
        matrices = 3 * inputs * 10 + 10 * 4 * 8
        return 2 * SAMPLES * (8 * (2 * 3 * inputs + 4 * inputs + shortcut) + matrices)

    assert [unit.module for unit in layers] == [f"interaction.interaction.layers.{index}" for index in (0, 1)]
    assert [unit.repeats for unit in layers] == [1, 2]
    assert [unit.num_parameters for unit in layers] == [parameters(3, 8 * 3), parameters(8, 0)]
    assert [unit.forward_flops for unit in layers] == [flops(3, 8 * 3), flops(8, 0)]
    assert {unit.backward_flops / unit.forward_flops for unit in layers} == {2}
    assert {unit.output_bytes for unit in layers} == {4 * 8 * 8 * SAMPLES}
    assert json.loads(profile.signature["spec.model.wukong"])["numLayers"] == 3


def test_operators_of_a_layer_are_counted_in_the_order_of_their_calls() -> None:
    """Norms and linear layers; projection and combination are the layer's own. Their moments are within the layer's."""
    layer = next(unit for unit in counted(WUKONG).units if unit.module == "interaction.interaction.layers.1")

    assert layer.operators is not None
    assert [each.module for each in layer.operators] == ["products_norm", "mlp.0", "mlp.2", "output_norm"]
    assert [each.num_parameters for each in layer.operators] == [48, 24 * 10 + 10, 10 * 32 + 32, 16]
    assert [each.largest_tensor_parameters for each in layer.operators] == [24, 240, 320, 8]
    assert layer.own_parameters == 8 * (3 + 4)
    first, second = layer.operators[1:3]
    assert (first.forward_flops, second.forward_flops) == (2 * SAMPLES * 24 * 10, 2 * SAMPLES * 10 * 32)
    assert first.backward_flops == 2 * first.forward_flops
    highest = layer.activation_bytes + layer.output_bytes + layer.transient_bytes
    assert max(each.backward_bytes + each.transient_bytes for each in layer.operators) <= highest
    assert second.left_bytes >= first.backward_bytes > first.left_bytes
    assert second.transient_bytes >= 4 * 320, "the gradient of its largest tensor"


def test_gradients_of_a_sharded_unit_count_from_where_they_are_computed() -> None:
    """One weight's gradient is there while the other's is computed in a wide layer, and not at a narrow one's peak."""
    cross = {"numLayers": 2, "lowRankDim": 200}
    wide = next(
        unit
        for unit in counted(job_of(architecture="DCNv2", crossNetwork=cross, batchSizePerDevice=1)).units
        if unit.module.startswith("interaction.")
    )
    narrow = next(
        unit
        for unit in counted(job_of(architecture="DCNv2", crossNetwork={"numLayers": 2, "lowRankDim": 1})).units
        if unit.module.startswith("interaction.")
    )

    assert wide.sharded_transient_bytes is not None
    assert narrow.sharded_transient_bytes is not None
    weight = 4 * 24 * 200
    assert 0 <= wide.sharded_transient_bytes - 2 * weight < 0.1 * weight
    assert wide.transient_bytes < 1.1 * weight
    column = 4 * 24 * SAMPLES
    assert narrow.sharded_transient_bytes - narrow.transient_bytes <= column + 4 * 24, "an input's gradient waits"


def test_inputs_that_nothing_keeps_are_counted_for_checkpointing() -> None:
    """DLRM's interaction copies the vectors that are stacked for it, and keeps the copy alone."""
    units = {unit.module: unit for unit in counted(job_of()).units}

    stacked = 4 * 2 * 8 * SAMPLES
    assert units["interaction"].unkept_input_bytes == stacked
    assert {unit.unkept_input_bytes for name, unit in units.items() if name != "interaction"} == {0}


def test_a_unit_that_is_one_layer_has_no_operators() -> None:
    """It would be gathered alone as it is."""
    assert [unit.operators for unit in counted(job_of()).units] == [None] * len(counted(job_of()).units)


def test_a_tensor_of_two_modules_leaves_no_operators() -> None:
    """It would have to be whole with both; so would one that the unit's module owns as well."""
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert [name for name, _ in operators_of(tied)] == ["0", "2"]

    tied[2].weight = tied[0].weight
    assert operators_of(tied) == ()

    with_norm = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    with_norm[2].bias = with_norm[0].bias
    assert operators_of(with_norm) == (), "the norm is too small to be an operator"


def test_an_operator_has_all_below_it() -> None:
    """Attention owns weights, and its output layer is in it."""
    block = nn.Sequential(nn.LayerNorm(4), nn.ModuleList([nn.MultiheadAttention(4, 2), nn.Linear(4, 4)]))

    assert [name for name, _ in operators_of(block)] == ["0", "1.0", "1.1"]


def test_a_small_module_is_gathered_with_its_unit() -> None:
    """A norm would be a collective more for less than a percent of the weights."""
    block = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64))

    assert [name for name, _ in operators_of(block)] == ["1", "2"]


def test_a_plan_that_splits_a_unit_without_operators_is_refused() -> None:
    """It is of another model."""
    unit = PlannedUnit(module="over", strategy=DenseStrategy.ZERO3, group=DenseGroup.NODE, split=True)

    assert len(split_operators(unit, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))) == 2
    assert split_operators(unit.model_copy(update={"split": False}), nn.Linear(2, 2)) == ()
    with pytest.raises(InputError, match=r"splits module 'over' .*make the plan again"):
        split_operators(unit, nn.Linear(2, 2))


def test_tables_of_terabytes_take_no_memory() -> None:
    """Nothing is allocated: a trillion rows are counted like a hundred."""
    tables = [{"name": "t0", "numEmbeddings": 10**12, "embeddingDim": 8}]
    profile = counted(job_of(embeddingTables=tables))

    assert profile.total_bytes < 2**20


def test_equal_jobs_give_equal_documents() -> None:
    """No time and no address is in it."""
    assert counted(job_of()).to_json() == freshly_counted(job_of()).to_json()


class OwnModel(nn.Module):
    """A model that the product does not know: a gate over the pooled embeddings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bags = [EmbeddingBagConfig(name="t0", num_embeddings=10**9, embedding_dim=width, feature_names=["a", "b"])]
        self.bags = EmbeddingBagCollection(tables=bags, device=torch.device("meta"))
        self.gate = nn.Linear(2 * width, 2 * width, dtype=torch.bfloat16)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return shape (samples, 2 x width)."""
        pooled: torch.Tensor = self.bags(lookups).values().bfloat16()
        return pooled * torch.sigmoid(self.gate(pooled))


def test_a_model_of_your_own_is_counted() -> None:
    """Its type, its two features of one table and its optimizer without state are in the document."""
    profile = described(lambda: OwnModel(16))

    assert profile.features_sha256 == features_sha256(own_tables(16))
    assert (profile.optimizer, profile.optimizer_state_bytes) == ("SGD", 0)
    assert [(unit.module, unit.data_type.value) for unit in profile.units] == [("gate", "BF16")]
    assert profile.weights_bytes == 2 * (32 * 32 + 32)
    # bfloat16 of the pooled embeddings, the gate's output, its sigmoid and the product
    assert profile.working_bytes >= 4 * 2 * 32 * SAMPLES


def test_a_model_without_tables_is_refused() -> None:
    """Nothing can be received, so that the count would be of another model."""
    with pytest.raises(InputError, match="no EmbeddingBagCollection"):
        described(lambda: nn.Linear(1, 1))


def test_the_counted_bytes_are_the_tensors_that_outlive_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tracker that counts otherwise, as in another release of torch, is refused with the version."""
    from torch.distributed._tools.mem_tracker import MemTracker

    class Forgetful(MemTracker):  # type: ignore[no-untyped-call]
        def _track_optimizer_states(self, *_: object) -> None:
            """Count no optimizer state."""

        def track_external(self, *external: Any) -> None:
            """Leave optimizers out."""
            super().track_external(*(each for each in external if not isinstance(each, torch.optim.Optimizer)))

    monkeypatch.setattr("torch.distributed._tools.mem_tracker.MemTracker", Forgetful)

    with pytest.raises(InputError, match=rf"torch {torch.__version__.split('+')[0]}.*optimizer state"):
        freshly_counted(job_of())


def test_a_torch_without_the_tracker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the version and the field that stands in."""
    monkeypatch.setitem(sys.modules, "torch.distributed._tools.mem_tracker", None)

    with pytest.raises(InputError, match=r"has no memory tracker.*denseMemoryPerDevice"):
        freshly_counted(job_of())


def written(path: Path, job: DLRMTrainingJob) -> Path:
    """Write the job and return its file."""
    path.write_text(job.to_json(), encoding="utf-8")
    return path


def test_the_command_writes_the_document(tmp_path: Path) -> None:
    """What it writes is read as a dense profile of this job."""
    out = tmp_path / "dense.json"

    assert main([str(written(tmp_path / "job.json", job_of())), "--out", str(out), "--device", "cpu"]) == ExitCode.OK

    assert DenseProfile.read(out) == counted(job_of(), multi_tensor=False)
    assert json.loads(DenseProfile.read(out).signature["spec.model.denseArchLayerSizes"]) == [8, 8]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a job, and with one whose tables are in a ConfigMap."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "job.json", job_of())
    there = {"configMapKeyRef": {"name": "tables", "key": "tables.csv"}}
    written(tmp_path / "far.json", job_of(embeddingTables=None, embeddingTablesFrom=there))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ("missing.yaml --out dense.json", ExitCode.INVALID_INPUT, "missing.yaml: does not exist"),
        ("job.json --out dense.json --tables no.csv", ExitCode.INVALID_INPUT, "no.csv: does not exist"),
        ("far.json --out dense.json", ExitCode.INVALID_INPUT, "give its table set with --tables"),
        ("job.json --out none/dense.json", ExitCode.STORAGE, "cannot be written"),
    ],
)
def test_what_cannot_be_counted_is_a_sentence(
    arguments: str, code: ExitCode, sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with the exit code of the documentation."""
    assert folder.is_dir()
    assert main(arguments.split()) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["table set", "plan request"])
def test_tables_of_a_file_take_the_place_of_a_config_maps(kind: str, folder: Path) -> None:
    """The file of a table set, or of the request that the job is planned by, decides the features."""
    asked = builders.request(builders.table("t9", embedding_dim=16))
    document = asked.tables if kind == "table set" else asked
    (folder / "tables.json").write_text(document.to_json(), encoding="utf-8")

    assert main(["far.json", "--tables", "tables.json", "--out", "dense.json"]) == ExitCode.OK
    assert DenseProfile.read(folder / "dense.json").features_sha256 == features_sha256(asked.tables.tables)


def test_a_dense_part_is_counted_at_each_batch_of_a_plan_request(folder: Path) -> None:
    """Where the plan chooses; one that is planned again with the batch it has is counted for that alone."""
    written(folder / "auto.json", job_of(batchSizePerDevice="Auto"))
    tables = job_of().spec.model.inline_tables("tables")
    assert tables is not None
    asked = builders.request(*tables.tables, batch_choices=BatchChoices(sizes=(512, 768)))
    for name, request in (("chosen", asked), ("kept", asked.with_batch(1536))):
        (folder / f"{name}.json").write_text(request.to_json(), encoding="utf-8")
        assert main(["auto.json", "--tables", f"{name}.json", "--out", f"dense-{name}.json"]) == ExitCode.OK

    counted_at = {name: read_dense(folder / f"dense-{name}.json") for name in ("chosen", "kept")}
    assert [each.batch_size_per_device for each in counted_at["chosen"]] == [512, 768]
    assert [each.batch_size_per_device for each in counted_at["kept"]] == [1536]
    assert counted_at["chosen"][1] == counted(job_of(batchSizePerDevice=768))


class Chain(nn.Module):
    """Elementwise functions of the received embeddings, one after the other, summed up per sample."""

    def __init__(self, *functions: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        config = EmbeddingBagConfig(name="t", num_embeddings=10, embedding_dim=8, feature_names=["t"])
        self.tables = EmbeddingBagCollection(tables=[config])
        self.scale = nn.Parameter(torch.ones(1))
        self._functions = functions

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return a number per sample."""
        values: torch.Tensor = self.tables(lookups).values()
        for function in self._functions:
            values = function(values)
        return values.sum(dim=1) * self.scale


@pytest.mark.parametrize(
    ("functions", "copies"),
    [((torch.relu, torch.relu, torch.relu), 4), ((torch.relu,), 2), ((torch.square,), 4)],
    ids=["three results and a gradient", "argument and result", "received, its double, and two gradients"],
)
def test_received_embeddings_count_while_the_model_uses_them(
    functions: Sequence[Callable[[torch.Tensor], torch.Tensor]], copies: int
) -> None:
    """ReLU saves its result alone, so that its argument is gone by the backward pass; a square saves the argument."""
    profile = describe_dense(
        lambda: Chain(*functions),
        lambda: (None,),
        tables=[Table(name="t", num_embeddings=10, embedding_dim=8)],
        batch_size=SAMPLES,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
        loss=torch.sum,
    )

    assert profile.working_bytes == pytest.approx(copies * 4 * 8 * SAMPLES, rel=0.3)


def test_products_of_a_matrix_for_each_sample_move_bytes() -> None:
    """Memory bounds them; those of a layer count by their operations alone."""
    samples = torch.ones(100, 8, 16)
    weights = torch.ones(16, 4)

    batched, layer = (
        counted_passes(product, lambda _value: None)[0]
        for product in (lambda: torch.bmm(samples, samples.transpose(1, 2)), lambda: torch.mm(samples[:, 0], weights))
    )

    assert (batched.products, layer.products) == (1, 1)
    assert (batched.moved_bytes, layer.moved_bytes) == (2 * samples.nbytes + 4 * 100 * 8 * 8, 0)
