"""What the drop-in keeps of TorchRec's constraints and of what sharders allow, and what it names instead."""

import dataclasses
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from neuroshard_torchrec.arguments import ARGUMENTS, COPIED, FIELDS, TOPOLOGY_ARGUMENTS, guide_table
from neuroshard_torchrec.question import question_of
from support.dropin.dropin_models import META, Remapped, TwoTowers, config
from support.dropin.dropin_planners import kinds, planned, planner
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import (
    ParameterConstraints,
    Perf,
    PlannerErrorType,
    ShardEstimator,
    ShardingOption,
    Storage,
    StorageReservation,
    Topology,
)
from torchrec.distributed.types import BoundsCheckMode, CacheAlgorithm, CacheParams, KeyValueParams
from torchrec.distributed.types import ShardingType as KnownTypes
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

TOPOLOGY = Topology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=2**36)


@dataclasses.dataclass
class Remembering(ParameterConstraints):  # type: ignore[misc] # torchrec has no types
    """Constraints of a framework with a requirement of its own."""

    evicts: int = 0


class Guessing(ShardEstimator):  # type: ignore[misc] # torchrec has no types
    """An estimator of a user's own."""

    def __init__(self) -> None:
        """Need nothing."""

    def estimate(self, sharding_options: list[ShardingOption], **_: object) -> None:
        """Find all options equal."""
        for shard in (each for option in sharding_options for each in option.shards):
            shard.storage, shard.perf = Storage(hbm=0, ddr=0), Perf(0, 0, 0, 0)


class Stored:
    """A plan loader."""

    def __init__(self, options: object, context: str) -> None:
        self._options, self._context = options, context

    def load(self) -> object:
        """Return the options that were stored."""
        return self._options

    def plan_context_hash(self) -> str:
        """Return the context that they were stored in."""
        return self._context

    def get_plan_id(self) -> str:
        """Return a name for messages."""
        return "stored"


class ByRowsAlone(EmbeddingEnumerator):  # type: ignore[misc] # torchrec has no types
    """An enumerator that finds the types itself."""

    def _filter_sharding_types(self, name: str, *_: object) -> list[str]:
        return ["row_wise"] if name == "tags" else ["table_wise"]


class ByPath(EmbeddingEnumerator):  # type: ignore[misc] # torchrec has no types
    """An enumerator with constraints by the path of a table, and with no option of one."""

    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[ShardingOption]:
        """Return TorchRec's options of the types that a collection may have."""
        types = {"items": "row_wise", "users": "table_wise"}
        found = [
            option
            for option in super().enumerate(module, sharders)
            if option.name != "tags" and option.sharding_type == types[option.path]
        ]
        for option in found:
            option.bounds_check_mode = BoundsCheckMode.FATAL if option.path == "items" else None
        return found


class Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc] # torchrec has no types
    """Allows these types, and these kernels for each."""

    def __init__(self, types: list[str], kernels: list[str]) -> None:
        super().__init__()
        self._types, self._kernels = types, kernels

    def sharding_types(self, _device: str) -> list[str]:
        """Return the types."""
        return self._types

    def compute_kernels(self, _type: str, _device: str) -> list[str]:
        """Return the kernels."""
        return self._kernels


BAGS = EmbeddingBagCollection(tables=[config("a"), config("b")], device=META)


def test_constraints_of_torchrec_are_kept() -> None:
    """Types, widths, and lookups, by the table's name."""
    limits = {
        "country": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[40.0]),
        "tags": CUT,
    }
    made = planner(constraints=limits)
    made.plan(TwoTowers())
    shards = {table.name: table.shards for table in planned(made).tables}

    assert len(shards["country"]) == 1
    assert {each.num_columns for each in shards["tags"]} == {16}  # so many lookups are worth the cut


def test_what_tunes_torchrecs_search_is_named_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """No requirement is among these arguments."""
    with caplog.at_level(logging.WARNING):
        planner(stats=[], proposer=GreedyProposer()).plan(TwoTowers())

    assert "proposer, stats: without effect" in caplog.text


def test_estimators_that_an_enumerator_is_given_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """They rate TorchRec's options, as a performance_model does; TorchRec's own say nothing."""
    theirs = [EmbeddingPerfEstimator(TOPOLOGY), EmbeddingStorageEstimator(TOPOLOGY)]
    with caplog.at_level(logging.WARNING):
        planner(topology=TOPOLOGY, enumerator=EmbeddingEnumerator(TOPOLOGY, 1024)).plan(TwoTowers())
        planner(topology=TOPOLOGY, enumerator=EmbeddingEnumerator(TOPOLOGY, 1024, estimator=theirs)).plan(TwoTowers())
        assert "without effect" not in caplog.text
        peak = EmbeddingStorageEstimator(TOPOLOGY, run_embedding_at_peak_memory=True)
        own = EmbeddingEnumerator(TOPOLOGY, 1024, estimator=[Guessing(), peak])
        planner(topology=TOPOLOGY, enumerator=own).plan(TwoTowers())

    named = "Guessing of the enumerator, EmbeddingStorageEstimator of the enumerator: without effect"
    assert named in caplog.text


def test_options_of_torchrecs_search_are_refused_by_name() -> None:
    """A plan is all that there is; None means that nothing was enumerated, as TorchRec has it."""
    made = planner()
    made.plan(TwoTowers())

    assert made.get_search_space() is None
    with pytest.raises(DropInError, match=r"get_selected_options: .*hint: .*last_plan"):
        made.get_selected_options()


def test_a_stored_plan_is_checked_and_returned() -> None:
    """One of another context is TorchRec's error, and without one a plan is searched."""
    limits = {"tags": ParameterConstraints(sharding_types=["row_wise"])}
    theirs = EmbeddingShardingPlanner(TOPOLOGY, 1024, constraints=limits)
    module, sharders = TwoTowers(), [EmbeddingBagCollectionSharder()]
    plan = theirs.plan(module, sharders)
    options = {each.storage_hash(): each for each in theirs._best_plan or ()}
    context = theirs.hash_planner_context_inputs_str()

    def found(batch_size: int, stored: object) -> NeuroShardPlanner:
        return planner(
            topology=TOPOLOGY, batch_size=batch_size, constraints=limits, plan_loader=Stored(stored, context)
        )

    same = found(1024, options)
    assert same.plan(module, sharders).plan == plan.plan
    assert same.last_plan is None
    with pytest.raises(DropInError, match=r"plan_loader: .*mismatch") as refused:
        found(512, options).plan(module, sharders)
    assert refused.value.error_type is PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH
    searched = found(1024, None)
    searched.plan(module, sharders)
    assert searched.last_plan is not None


@pytest.mark.parametrize(
    ("given", "name"), [({"callbacks": [sorted]}, "callbacks"), ({"timeout_seconds": 5}, "timeout_seconds")]
)
def test_a_requirement_that_is_not_kept_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    """When a plan is made, so that all ranks raise together."""
    with pytest.raises(DropInError, match=f"^{name}: is not kept: .*hint: leave it out"):
        planner(**given).plan(TwoTowers())


def test_every_argument_and_field_of_the_installed_torchrec_is_covered() -> None:
    """Those of a later release are found here before they are lost."""
    arguments = [*inspect.signature(EmbeddingShardingPlanner.__init__).parameters][1:]
    ours = [*inspect.signature(NeuroShardPlanner.__init__).parameters][1:]

    assert {*arguments} <= {*ARGUMENTS}
    assert ours[: len(arguments)] == arguments
    assert {*inspect.signature(Topology.__init__).parameters} - {"self"} <= {*TOPOLOGY_ARGUMENTS}
    assert {each.name for each in dataclasses.fields(ParameterConstraints)} <= {*FIELDS}


def test_the_guide_has_what_becomes_of_each_argument_and_field() -> None:
    """Its tables are the code's."""
    guide = (Path(__file__).parents[2] / "docs/guides/use-with-torchrec.md").read_text()

    assert guide_table(ARGUMENTS, "argument of `EmbeddingShardingPlanner`") in guide
    assert guide_table(TOPOLOGY_ARGUMENTS, "argument of `Topology`") in guide
    assert guide_table(FIELDS, "field of `ParameterConstraints`") in guide


def test_every_field_that_a_plan_has_too_reaches_the_kernel() -> None:
    """By the fields of TorchRec's own dataclasses, so that those of a later release come along."""
    asked = ParameterConstraints(
        enforce_hbm=True,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.FATAL,
        output_dtype=TorchRecType.FP16,
        cache_params=CacheParams(algorithm=CacheAlgorithm.LFU, load_factor=0.25),
        key_value_params=KeyValueParams(),
    )
    found = planner(constraints={"tags": asked}).plan(TwoTowers()).plan["items"]["tags"]

    assert {"output_dtype", "cache_params", "bounds_check_mode"} <= {*COPIED}
    assert all(getattr(found, field) == getattr(asked, field) for field in COPIED)


def test_an_output_type_of_all_tables_is_priced() -> None:
    """FP16 halves what travels."""
    asked = {name: ParameterConstraints(output_dtype=TorchRecType.FP16) for name in ("id", "country", "tags")}
    narrow, wide = planner(constraints=asked), planner()
    narrow.plan(TwoTowers())
    wide.plan(TwoTowers())

    assert planned(narrow).request.memory.output_data_type is DataType.FP16
    assert planned(narrow).predicted.total_ms < planned(wide).predicted.total_ms


@pytest.mark.parametrize(
    ("forward", "backward", "wire"),
    [
        (CommType.FP16, CommType.BF16, WireTypes(forward=WireType.FP16, backward=WireType.BF16)),
        (CommType.FP32, CommType.FP32, None),
        (CommType.INT8, CommType.FP16, None),
    ],
)
def test_codecs_of_the_sharders_are_priced(
    forward: CommType, backward: CommType, wire: WireTypes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """What they make of the embeddings is what travels; a warning names those without a price."""
    codecs = get_qcomm_codecs_registry(QCommsConfig(forward_precision=forward, backward_precision=backward))
    made = planner()
    with caplog.at_level(logging.WARNING):
        made.plan(BAGS, [EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)])

    assert planned(made).request.wire == wire
    assert ("priced as FP32 on the wire" in caplog.text) == (forward is CommType.INT8)


def test_two_batch_sizes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """That of the planner counts."""
    with caplog.at_level(logging.WARNING):
        planner(topology=TOPOLOGY, batch_size=512, enumerator=EmbeddingEnumerator(TOPOLOGY, 64))

    assert "batch_size: 512 counts, and not the enumerator's 64" in caplog.text


@pytest.mark.parametrize("in_field", [True, False], ids=["a field", "an attribute"])
def test_what_a_subclass_of_constraints_adds_is_refused_by_name(in_field: bool) -> None:  # noqa: FBT001 - two cases
    """A framework's planner would keep it."""
    limit = Remembering(evicts=3) if in_field else Remembering()
    if not in_field:
        limit.evict_after = 3
    name = "evicts" if in_field else "evict_after"

    enumerator = ByRowsAlone(TOPOLOGY, batch_size=128, constraints={"tags": limit})
    for given in ({"constraints": {"tags": limit}}, {"topology": TOPOLOGY, "enumerator": enumerator}):
        with pytest.raises(DropInError, match=rf"constraints\['tags'\]\.{name}: is not kept: a field of Remembering"):
            planner(**given).plan(TwoTowers())


def test_a_subclass_of_constraints_that_asks_for_nothing_of_its_own_is_kept() -> None:
    """Its defaults are TorchRec's behavior."""
    made = planner(constraints={"tags": Remembering(sharding_types=["row_wise"])})

    assert made.plan(TwoTowers()).plan["items"]["tags"].sharding_type == "row_wise"


def test_lookups_count_poolings_and_the_batches_of_features() -> None:
    """A feature of half the batch has half the lookups."""
    limit = ParameterConstraints(pooling_factors=[8.0], num_poolings=[3.0], batch_sizes=[256])
    made = planner(batch_size=512, constraints={"tags": limit})
    made.plan(TwoTowers())

    assert {table.name: table.pooling_factor for table in planned(made).request.tables.tables}["tags"] == 12.0


def test_a_table_of_another_device_group_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """As TorchRec leaves it out of a plan for GPUs."""
    with caplog.at_level(logging.WARNING):
        found = planner(constraints={"tags": ParameterConstraints(device_group="cpu")}).plan(TwoTowers())

    assert "tags" not in found.plan["items"]
    assert "country" in found.plan["users"]
    assert "table 'tags' is left out of the plan, as TorchRec's planner does" in caplog.text
    assert "is not a table" not in caplog.text


def test_constraints_of_other_models_are_passed_over_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Frameworks share one mapping."""
    with caplog.at_level(logging.WARNING):
        planner(constraints={"other": ParameterConstraints(sharding_types=["row_wise"])}).plan(TwoTowers())

    assert "'other' is not a table of the planned module" in caplog.text


def test_the_constraints_of_an_enumerator_are_kept() -> None:
    """Scripts often give them there alone."""
    limits = {"tags": ParameterConstraints(sharding_types=["row_wise"])}
    enumerator = EmbeddingEnumerator(TOPOLOGY, batch_size=128, constraints=limits)
    made = planner(topology=TOPOLOGY, batch_size=None, enumerator=enumerator)

    assert made.plan(TwoTowers()).plan["items"]["tags"].sharding_type == "row_wise"
    assert planned(made).request.batch_size_per_device == 128


def test_two_sources_of_constraints_have_to_agree() -> None:
    """Neither is chosen in silence."""
    enumerator = EmbeddingEnumerator(TOPOLOGY, 128, {"tags": ParameterConstraints(sharding_types=["row_wise"])})

    with pytest.raises(DropInError, match=r"constraints\['tags'\]: are not those of the enumerator"):
        planner(enumerator=enumerator, constraints={"tags": ParameterConstraints()}).plan(TwoTowers())


def test_an_enumerator_of_another_class_is_asked_for_the_types_of_each_table() -> None:
    """It may find constraints by paths, or make them up."""
    enumerator = ByRowsAlone(TOPOLOGY, batch_size=128)
    found = planner(topology=TOPOLOGY, enumerator=enumerator).plan(TwoTowers())

    assert found.plan["items"]["tags"].sharding_type == "row_wise"


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
@pytest.mark.parametrize("reservation", [FixedPercentageStorageReservation, HeuristicalStorageReservation])
def test_a_storage_reservation_is_kept_free(reservation: Callable[[float], StorageReservation]) -> None:
    """Users of TorchRec raise it after an out-of-memory error."""
    topology = Topology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=2**36)
    made = planner(topology=topology, storage_reservation=reservation(0.4))
    made.plan(TwoTowers())

    memory = planned(made).request.memory
    assert memory.reserve_fraction == 0.0
    dense = memory.dense_bytes or 0 if reservation is FixedPercentageStorageReservation else 0
    assert abs(memory.reserve_bytes + dense - 0.4 * 2**36) <= 1


def test_a_remedy_names_the_reservation_that_takes_a_share_of_a_larger_cap() -> None:
    """A cap that would do without it would not do."""
    topology = Topology(world_size=1, compute_device="cuda", hbm_cap=2**20)
    with pytest.raises(DropInError, match="hint: a larger hbm_cap or a lower storage_reservation would do; "):
        planner(topology=topology, storage_reservation=FixedPercentageStorageReservation(0.5)).plan(TwoTowers())


def test_the_dense_part_is_in_a_reservation_that_counts_none() -> None:
    """It is for all that is not sharded."""
    module = nn.Sequential(BAGS, nn.Linear(1000, 1000, bias=False, device=META))
    for kept, reserve in ((2**30, 2**30 - 16_000_000), (2**20, 0)):
        made = planner(topology=TOPOLOGY, storage_reservation=FixedPercentageStorageReservation(kept / 2**36))
        made.plan(module)
        memory = planned(made).request.memory
        assert (memory.dense_bytes, memory.reserve_bytes) == (16_000_000, reserve)


@pytest.mark.filterwarnings("ignore:HeuristicalStorageReservation:FutureWarning")
def test_a_reservation_of_all_memory_is_torchrecs_error() -> None:
    """With its type."""
    with pytest.raises(DropInError, match=r"^storage_reservation: ") as caught:
        planner(
            topology=Topology(world_size=4, local_world_size=4, compute_device="cuda", hbm_cap=2**20),
            storage_reservation=HeuristicalStorageReservation(1.0, dense_tensor_estimate=2**30),
        ).plan(TwoTowers())

    assert caught.value.error_type is PlannerErrorType.INSUFFICIENT_STORAGE


ADAM = EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM})


@pytest.mark.parametrize(
    ("rows", "limit", "sharder", "found"),
    [
        (130_000_000, ParameterConstraints(sharding_types=["table_wise"]), None, PlannerErrorType.STRICT_CONSTRAINTS),
        (600_000_000, ParameterConstraints(), None, PlannerErrorType.INSUFFICIENT_STORAGE),
        (150_000_000, ParameterConstraints(), ADAM, PlannerErrorType.INSUFFICIENT_STORAGE),
        (
            130_000_000,
            ParameterConstraints(sharding_types=["data_parallel"]),
            None,
            PlannerErrorType.INSUFFICIENT_STORAGE,
        ),
    ],
    ids=["one device", "all devices", "with optimizer state", "in copies"],
)
def test_the_type_of_an_error_says_what_to_change(
    rows: int,
    limit: ParameterConstraints,
    sharder: EmbeddingBagCollectionSharder | None,
    found: PlannerErrorType,
) -> None:
    """More devices where all together lack room, for copies and optimizer states too; else the constraints."""
    module = EmbeddingBagCollection(tables=[config("a", rows=rows, columns=192)], device=META)
    with pytest.raises(DropInError) as caught:
        planner(topology=Topology(2, "cuda", hbm_cap=80 * 2**30), constraints={"a": limit}).plan(
            module, [sharder or EmbeddingBagCollectionSharder()]
        )

    assert caught.value.error_type is found


@pytest.mark.parametrize(
    ("limit", "given", "message"),
    [
        (ParameterConstraints(sharding_types=["column_wise"], min_partition=4096), {}, "hint: lower min_partition$"),
        (ParameterConstraints(sharding_types=["row_wise"]), {}, r"2,048 \(as FBGEMM's kernels take\)"),
        (ParameterConstraints(output_dtype=TorchRecType.INT8), {}, "^request: output_dtype: "),
        (ParameterConstraints(), {"batch_size": 10**9}, "^request: batch_size: "),
        (ParameterConstraints(), {"dense_memory_bytes": -1}, "^request: dense_memory_bytes: "),
    ],
    ids=["width", "widest", "output", "batch", "dense"],
)
def test_what_is_refused_is_named_in_the_words_of_a_script(
    limit: ParameterConstraints, given: dict[str, Any], message: str
) -> None:
    """A request's fields are not arguments of a script."""
    module = EmbeddingBagCollection(tables=[config("a", columns=4096)], device=META)
    with pytest.raises(DropInError, match=message):
        planner(constraints={"a": limit}, **given).plan(module)


def test_a_table_without_an_option_of_the_enumerator_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """TorchRec's planner has no place for it either."""
    with caplog.at_level(logging.WARNING):
        found = planner(topology=TOPOLOGY, enumerator=ByPath(TOPOLOGY, batch_size=128)).plan(TwoTowers())

    assert "tags" not in found.plan["items"]
    assert "table 'tags' is left out of the plan" in caplog.text


def test_an_enumerator_tells_tables_of_equal_names_apart() -> None:
    """TorchEasyRec has constraints by the path of a table; what an option says besides reaches the kernel."""
    found = planner(topology=TOPOLOGY, enumerator=ByPath(TOPOLOGY, batch_size=128)).plan(TwoTowers())

    assert found.plan["items"]["id"].sharding_type == "row_wise"
    assert found.plan["users"]["id"].sharding_type == "table_wise"
    assert found.plan["items"]["id"].bounds_check_mode is BoundsCheckMode.FATAL
    assert found.plan["users"]["id"].bounds_check_mode is None


@pytest.mark.parametrize("kernel", ["fused", "fused_uvm", "fused_uvm_caching"])
def test_the_kernels_of_a_sharder_are_kept(kernel: str) -> None:
    """A sharder of host memory alone asks for it as constraints do."""
    found = planner(topology=TOPOLOGY).plan(BAGS, [Sharder(["table_wise"], [kernel])])

    assert {each.compute_kernel for each in found.plan[""].values()} == {kernel}


@pytest.mark.parametrize("kernel", ["dense", "key_value"])
def test_kernels_of_a_sharder_that_are_not_placed_are_refused(kernel: str) -> None:
    """Other kernels are not put in their place."""
    with pytest.raises(DropInError, match=f"its sharder has {kernel} for table_wise") as caught:
        planner().plan(BAGS, [Sharder(["table_wise"], [kernel])])

    assert caught.value.error_type is PlannerErrorType.STRICT_CONSTRAINTS


def test_tables_of_feature_processors_are_by_rows_only_where_constraints_say_so() -> None:
    """As TorchRec has it, which tests their pipeline less there."""
    processed = FeatureProcessedEmbeddingBagCollection(
        EmbeddingBagCollection(tables=[config("a")], is_weighted=True, device=META),
        PositionWeightedModuleCollection({"a_id": 10}, device=META),
    )
    free, asked = planner(), planner(constraints={"a": ParameterConstraints(sharding_types=["row_wise"])})
    free.plan(processed)

    types = planned(free).request.constraints.tables["a"].sharding_types
    assert types == (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE)
    assert asked.plan(processed).plan[""]["a"].sharding_type == "row_wise"


def test_a_fused_collection_is_planned_with_its_own_optimizer() -> None:
    """Its tables are no part of the dense model."""
    fused = FusedEmbeddingBagCollection([config("a")], torch.optim.Adagrad, {"lr": 0.1}, device=META)
    made = planner()
    found = made.plan(nn.ModuleDict({"bags": fused}), [FusedEmbeddingBagCollectionSharder()])

    assert found.plan["bags"].keys() == {"a"}
    assert planned(made).request.optimizer is Optimizer.ADAGRAD
    assert planned(made).request.memory.dense_bytes == 0


def test_copies_are_made_where_kernels_leave_no_other_type() -> None:
    """TorchRec's data-parallel example names the kernel dense alone."""
    found = planner(constraints={"tags": ParameterConstraints(compute_kernels=["dense"])}).plan(TwoTowers())

    tags = found.plan["items"]["tags"]
    assert (tags.sharding_type, tags.compute_kernel) == ("data_parallel", "dense")


@pytest.mark.parametrize("types", [["table_column_wise"], ["table_column_wise", "data_parallel"]])
def test_a_table_cut_by_columns_within_a_node_is_on_one_node(types: list[str]) -> None:
    """TorchRec calls it table_column_wise."""
    topology = Topology(world_size=4, local_world_size=2, compute_device="cuda", hbm_cap=2**36)
    limits = {name: ParameterConstraints(sharding_types=types) for name in ("tags", "country")}
    found = planner(topology=topology, constraints=limits).plan(TwoTowers())

    tables = [found.plan["items"]["tags"], found.plan["users"]["country"]]
    assert {each.sharding_type for each in tables} == {"table_column_wise"}
    assert sorted({rank // 2 for rank in each.ranks} for each in tables) == [{0}, {1}]


@pytest.mark.parametrize(("columns", "least"), [(4, None), (64, 64)])
def test_a_grid_of_one_block_is_on_one_node(columns: int, least: int | None) -> None:
    """TorchRec does not cut a narrow table, and calls it grid_shard all the same."""
    topology = Topology(world_size=4, local_world_size=2, compute_device="cuda", hbm_cap=2**36)
    module = EmbeddingBagCollection(tables=[config("a", columns=columns)], device=META)
    limits = {"a": ParameterConstraints(sharding_types=["grid_shard"], min_partition=least)}
    found = planner(topology=topology, constraints=limits).plan(module).plan[""]["a"]

    assert found.sharding_type == "grid_shard"
    assert [each.shard_sizes for each in found.sharding_spec.shards] == [[500, columns]] * 2
    assert len({rank // 2 for rank in found.ranks}) == 1


def test_a_minimum_that_does_not_divide_becomes_the_next_width_that_does() -> None:
    """As in TorchRec: 6 of 16 columns are 8."""
    made = planner(constraints={"tags": ParameterConstraints(min_partition=6)})
    made.plan(TwoTowers())

    assert planned(made).request.constraints.tables["tags"].min_shard_width == 8


def test_kernels_of_host_memory_are_kept_where_constraints_name_them() -> None:
    """In the memory that TorchRec's topology gives each rank, ddr_cap, those of a node together."""
    topology = Topology(
        world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30, ddr_cap=100 * 2**30
    )
    made = planner(
        topology=topology,
        constraints={"country": ParameterConstraints(compute_kernels=["fused_uvm_caching"])},
    )
    found = made.plan(TwoTowers())

    memory = planned(made).request.topology.host_memory
    assert memory is not None
    assert memory.bytes_per_node == 4 * 100 * 2**30
    kernels = {name: each.compute_kernel for tables in found.plan.values() for name, each in tables.items()}
    assert kernels.pop("country") == "fused_uvm_caching"
    assert set(kernels.values()) == {"fused"}


def test_a_load_factor_is_planned_with() -> None:
    """In the ledger as in the plan, also that of a sharder; more than all rows is refused."""
    topology = Topology(
        world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30, ddr_cap=100 * 2**30
    )

    def cached(factor: float) -> NeuroShardPlanner:
        limit = ParameterConstraints(
            compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(load_factor=factor)
        )
        return planner(topology=topology, constraints={"tags": limit})

    made = cached(0.25)
    found = made.plan(TwoTowers()).plan["items"]["tags"]
    assert found.cache_params.load_factor == 0.25
    assert {table.name: table.cache_load_factor for table in planned(made).tables}["tags"] == 0.25
    with pytest.raises(DropInError, match=r"constraints\['tags'\].cache_params.load_factor: must be above 0"):
        cached(1.5).plan(TwoTowers())
    sharder = EmbeddingBagCollectionSharder(fused_params={"cache_load_factor": 0.5})
    made = planner(topology=topology, constraints={"a": ParameterConstraints(compute_kernels=["fused_uvm_caching"])})
    assert made.plan(BAGS, [sharder]).plan[""]["a"].cache_params.load_factor == 0.5


def test_host_memory_without_a_size_is_refused() -> None:
    """Nothing is assumed of the node."""
    limits = {"country": ParameterConstraints(compute_kernels=["fused_uvm"])}
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=4)
    with pytest.raises(DropInError, match="may run with fused_uvm, and the topology has no host_memory"):
        planner(topology=topology, constraints=limits).plan(TwoTowers())


def test_a_table_that_may_be_in_either_memory_is_on_the_device_where_nodes_have_none() -> None:
    """The list permits host memory and does not ask for it."""
    limits = {"country": ParameterConstraints(compute_kernels=["fused", "fused_uvm_caching"])}
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=4)
    made = planner(topology=topology, constraints=limits)
    found = made.plan(TwoTowers())

    assert planned(made).request.topology.host_memory is None
    assert {each.compute_kernel for tables in found.plan.values() for each in tables.values()} == {"fused"}


COLUMNS = ["table_wise", "column_wise"]
CUT = ParameterConstraints(sharding_types=COLUMNS, min_partition=16, pooling_factors=[2000.0])
"""That many lookups are worth a cut of a table of 32 columns."""


def test_a_whole_table_next_to_a_cut_one_is_column_wise_unless_it_may_not_be(caplog: pytest.LogCaptureFixture) -> None:
    """Each type of a collection has kernels of its own, and only the first is priced."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    either = ParameterConstraints(sharding_types=["table_wise", "column_wise"], min_partition=16)
    made = planner(constraints={"tags": CUT, "id": either, "country": whole})
    with caplog.at_level(logging.WARNING):
        assert kinds(made.plan(TwoTowers()))["items"] == {"id": "column_wise", "tags": "column_wise"}
        assert "of which one is priced" not in caplog.text
        asked = planner(constraints={"tags": CUT, "id": whole, "country": whole}).plan(TwoTowers())

    assert kinds(asked) == {
        "users": {"id": "table_wise", "country": "table_wise"},
        "items": {"id": "table_wise", "tags": "column_wise"},
    }
    assert "items has table_wise tables, as asked, and column_wise ones" in caplog.text


def test_a_table_that_may_only_be_column_wise_may_have_one_shard() -> None:
    """As TorchRec has it; it is called column_wise."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    columns = ParameterConstraints(sharding_types=["column_wise"], min_partition=8)
    made = planner(constraints={"country": columns, "id": whole, "tags": whole})
    found = made.plan(TwoTowers())

    assert {table.name: len(table.shards) for table in planned(made).tables}["country"] == 1
    assert kinds(found)["users"]["country"] == "column_wise"
    assert set(kinds(found)["items"].values()) == {"table_wise"}


def test_types_that_constraints_name_are_searched() -> None:
    """Rows of a table on all devices, columns of another."""
    module = EmbeddingBagCollection(tables=[config("a"), config("b")], device=META)
    limits = {
        "a": ParameterConstraints(sharding_types=["row_wise"]),
        "b": ParameterConstraints(sharding_types=COLUMNS),
    }
    found = planner(constraints=limits).plan(module).plan[""]

    assert found["a"].sharding_type == "row_wise"
    assert [shard.shard_sizes for shard in found["a"].sharding_spec.shards] == [[250, 16]] * 4
    assert found["b"].sharding_type in {"table_wise", "column_wise"}


def test_tables_of_managed_collision_are_cut_by_rows() -> None:
    """TorchRec's sharders allow nothing else, for bags and for sequences."""
    found = kinds(planner().plan(nn.ModuleDict({"remapped": Remapped(length=3)})))

    assert found["remapped.bags"] == {"ids": "row_wise"}
    assert found["remapped.rows"] == {"words": "row_wise"}


def test_buckets_of_managed_collision_that_are_uneven_are_refused() -> None:
    """As by TorchRec's planner: rows of a bucket stay on one device."""
    topology = Topology(world_size=3, compute_device="cuda", local_world_size=3, hbm_cap=80 * 2**30)

    with pytest.raises(DropInError, match="table 'ids' has 4 buckets of managed collision on 3 devices"):
        planner(topology=topology).plan(Remapped(length=3))


def test_rows_of_means_stay_together_and_their_neighbours_have_all_types() -> None:
    """TorchRec divides sums too as soon as a table of means next to them is cut by rows."""
    rows, copies = (ParameterConstraints(sharding_types=[kind]) for kind in ("row_wise", "data_parallel"))
    found = kinds(planner(constraints={"id": rows, "country": copies}).plan(TwoTowers()))

    assert (found["users"]["id"], found["users"]["country"]) == ("row_wise", "data_parallel")
    with pytest.raises(DropInError, match="'country': row_wise cuts bags that are averaged"):
        planner(constraints={"country": rows}).plan(TwoTowers())


def test_ranks_that_differ_read_the_words_of_a_script() -> None:
    """A message shows both values of a setting, by table and field, and no names of our classes."""
    limits = {"tags": ParameterConstraints(sharding_types=["row_wise", "table_wise"])}
    settings = question_of(TwoTowers(), None, planner(constraints=limits)._settings).settings

    assert settings["sharding_types of table 'tags'"] == "table_wise, row_wise"
    assert not any("=" in value or "<" in value for value in settings.values())


def test_tables_without_limits_have_all_types_but_data_parallel() -> None:
    """The script itself has to update data_parallel tables; a limit of one table says nothing of the other."""
    limits = {"tags": ParameterConstraints(sharding_types=["table_wise"])}

    made = planner(constraints=limits)
    made.plan(TwoTowers())
    found = planned(made).request.constraints

    assert found.excluded_sharding_types == (ShardingType.DATA_PARALLEL,)
    assert found.max_shard_width == 2048, "what the kernels of the installed FBGEMM take on GPUs"
    assert found.sharding_types is None
    assert found.sharding_types_of("items/id") is None
    assert {name: each.sharding_types for name, each in found.tables.items()} == {"tags": (ShardingType.TABLE_WISE,)}


@pytest.mark.parametrize(
    "asked", [{"sharding_types": [KnownTypes.ROW_WISE]}, {"sharding_types": "row_wise"}], ids=["a member", "a word"]
)
def test_types_may_be_members_of_torchrecs_enum(asked: dict[str, Any]) -> None:
    """A word alone is one type, and no part of another one's name."""
    found = planner(constraints={"tags": ParameterConstraints(**asked)}).plan(TwoTowers())

    assert found.plan["items"]["tags"].sharding_type == "row_wise"


def test_an_empty_list_of_lookups_is_torchrecs_default() -> None:
    """As empty lists of types and kernels limit nothing."""
    made = planner(constraints={"tags": ParameterConstraints(pooling_factors=[])})
    made.plan(TwoTowers())

    assert {table.name: table.pooling_factor for table in planned(made).request.tables.tables}["tags"] == 1.0


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_lookups_that_are_no_count_are_refused_in_the_scripts_words(factor: float) -> None:
    """The field is named, and what to give."""
    with pytest.raises(DropInError, match=r"^constraints\['tags'\].pooling_factors: must be finite .*; hint: give"):
        planner(constraints={"tags": ParameterConstraints(pooling_factors=[factor])}).plan(TwoTowers())


def test_a_virtual_table_is_refused() -> None:
    """Its rows are a number of ids, and none of them has a place."""
    module = EmbeddingBagCollection(tables=[config("a", use_virtual_table=True, total_num_buckets=4)], device=META)

    with pytest.raises(DropInError, match="table 'a' is a virtual table"):
        planner().plan(module)
