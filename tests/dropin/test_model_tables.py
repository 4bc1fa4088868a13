import pytest
import torch
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling
from neuroshard_torchrec import DropInError, model_tables, table_set_of
from neuroshard_torchrec.asked import Asked
from support.dropin.dropin_models import META, TwoTowers, batch, config
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.optim import RowWiseAdagrad
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

pytestmark = pytest.mark.torchrec


def test_tables_of_all_collections_are_read_as_the_module_declares_them() -> None:
    """On the meta device: rows, columns, pooling, and features; one lookup per feature where nothing says more."""
    tables = {table.name: table for table in table_set_of(TwoTowers()).tables}

    assert list(tables) == ["users/id", "country", "items/id", "tags"]
    assert [(each.num_embeddings, each.embedding_dim) for each in tables.values()] == [
        (5000, 16),
        (200, 8),
        (3000, 16),
        (700, 32),
    ]
    assert tables["country"].pooling is Pooling.MEAN
    assert tables["items/id"].feature_names == ("item", "last_item")
    assert tables["items/id"].pooling_factor == 2.0
    assert table_set_of(TwoTowers()).name == "TwoTowers"


def test_a_table_knows_its_place_in_the_module() -> None:
    """By the path of its collection and its own name."""
    assert model_tables(TwoTowers()).places == {
        "users/id": ("users", "id"),
        "country": ("users", "country"),
        "items/id": ("items", "id"),
        "tags": ("items", "tags"),
    }


def test_narrow_weights_keep_their_type() -> None:
    """A collection given as the module itself has an empty path."""
    collection = EmbeddingBagCollection(tables=[config("t", data_type=TorchRecType.FP16)], device=META)
    tables = model_tables(collection)

    assert tables.table_set.tables[0].data_type is DataType.FP16
    assert tables.places == {"t": ("", "t")}


def test_tables_with_feature_processors_are_read() -> None:
    """The processed collection is what a sharder spreads, so its path counts."""
    inner = EmbeddingBagCollection(tables=[config("t", features=("f",))], device=META, is_weighted=True)
    module = nn.Sequential(
        FeatureProcessedEmbeddingBagCollection(inner, PositionWeightedModuleCollection({"f": 10}, device=META))
    )

    assert model_tables(module).places == {"t": ("0", "t")}


def test_sample_batches_give_lookups_and_reuse() -> None:
    """Of a table over all of its features, at the batches' size."""
    module = EmbeddingBagCollection(tables=[config("t", features=("a", "b"))], device=META)
    found = table_set_of(module, [batch({"a": 3, "b": 1}, samples=64, seed=seed) for seed in (1, 2)])
    [table] = found.tables

    assert found.reuse_batch_size == 64
    assert table.pooling_factor == 4.0
    assert table.reuse_histogram is not None
    assert sum(table.reuse_histogram) == pytest.approx(1.0)
    assert max(range(17), key=table.reuse_histogram.__getitem__) in {1, 2}  # 256 lookups of 100 rows


def test_one_batch_or_none_is_taken_as_well_as_several() -> None:
    """By both functions that read a module."""
    module = EmbeddingBagCollection(tables=[config("t", features=("a",))], device=META)
    one = batch({"a": 3}, samples=16)

    assert table_set_of(module, one) == table_set_of(module, [one])
    assert model_tables(module, sample_batches=one).table_set == table_set_of(module, [one])
    assert table_set_of(module, None) == model_tables(module, sample_batches=None).table_set == table_set_of(module)


def test_torchrecs_pooling_factors_count_where_no_batch_is_given() -> None:
    """One for each feature, as TorchRec's planner adds them up."""
    limits = {"tags": ParameterConstraints(pooling_factors=[7.5])}
    tables = model_tables(TwoTowers(), asked=Asked(by_name=limits)).table_set.tables

    assert {table.name: table.pooling_factor for table in tables}["tags"] == 7.5


class Sequences(nn.Module):
    """A collection that returns every row that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(name="t", num_embeddings=10, embedding_dim=8, feature_names=["f"])
        self.history = EmbeddingCollection(tables=[table], device=META)


def test_sequences_are_tables_without_bags() -> None:
    """Every looked-up row is returned; the collection is a place like any other."""
    found = model_tables(Sequences())
    [table] = found.table_set.tables

    assert table.pooling is Pooling.NONE
    assert table.is_sequence
    assert found.places == {"t": ("history", "t")}


def test_tables_of_managed_collision_are_read_and_take_ids_that_are_no_rows() -> None:
    """Reuse counts by id; rows are those of the table, to which ids are mapped."""
    table = config("t", rows=100, features=("f",))
    remapped = ManagedCollisionEmbeddingBagCollection(
        EmbeddingBagCollection(tables=[table], device=META),
        ManagedCollisionCollection(
            {
                "t": MCHManagedCollisionModule(
                    zch_size=100, device=META, eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=10
                )
            },
            [table],
        ),
    )
    found = model_tables(remapped, sample_batches=batch({"f": 3}, samples=16, lowest=10**9, ids=10**9 + 50))

    assert found.places == {"t": ("", "t")}
    assert found.table_set.tables[0].num_embeddings == 100
    assert found.table_set.tables[0].pooling_factor == 3.0


@pytest.mark.parametrize(("given", "expected"), [(True, True), (False, None)])
def test_weights_of_lookups_are_read(given: bool, expected: bool | None) -> None:  # noqa: FBT001 - the case
    """Of weighted bags; those of feature processors do not travel."""
    module = EmbeddingBagCollection(tables=[config("t", features=("f",))], device=META, is_weighted=given)
    processed = FeatureProcessedEmbeddingBagCollection(
        EmbeddingBagCollection(tables=[config("t", features=("f",))], device=META, is_weighted=True),
        PositionWeightedModuleCollection({"f": 10}, device=META),
    )

    assert table_set_of(module).tables[0].is_weighted is expected
    assert table_set_of(processed).tables[0].is_weighted is None


def test_a_table_without_named_features_has_one_of_its_own_name() -> None:
    """As TorchRec has it."""
    table = EmbeddingBagConfig(name="t", num_embeddings=10, embedding_dim=8)
    module = EmbeddingBagCollection(tables=[table], device=META)

    assert table_set_of(module, batch({"t": 2}, samples=4, ids=10)).tables[0].feature_names == ("t",)


def test_a_collection_that_no_sharder_takes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """TorchRec leaves it whole on every rank, in the dense part."""
    module = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=[config("b")], device=META), "rest": Sequences()})
    found = model_tables(module, sharders=[EmbeddingBagCollectionSharder()])

    assert list(found.places) == ["b"]
    assert "rest.history is a EmbeddingCollection, which none of the sharders takes" in caplog.text


def test_repeated_lists_of_a_batch_are_counted() -> None:
    """Over all features of a table: two of four samples have the lists of another one."""
    lists = KeyedJaggedTensor.from_lengths_sync(
        keys=["a", "b"],
        values=torch.tensor([1, 1, 2, 3, 7, 8, 7, 8, 9, 9]),
        lengths=torch.tensor([1, 1, 1, 1, 2, 0, 2, 2]),
    )
    table = config("t", rows=100, features=("a", "b"))
    different = KeyedJaggedTensor.from_lengths_sync(
        keys=["a", "b"],
        values=torch.tensor([1, 1, 2, 2, 7, 8, 7, 8, 5, 5]),
        lengths=torch.tensor([1, 1, 1, 1, 2, 2, 1, 1]),
    )
    found = [
        model_tables(EmbeddingBagCollection(tables=[table], device=META), sample_batches=each).statistics
        for each in (lists, different)
    ]

    assert [each.features[0].duplication_factor for each in found if each is not None] == [1.0, 2.0]
    module = EmbeddingBagCollection(tables=[table], device=META)
    several = table_set_of(module, [lists, different])
    assert several.session_run == 4
    assert several.tables[0].duplication_factor == pytest.approx(8 / 6)
    assert table_set_of(module).tables[0].duplication_factor is None


def test_a_batch_may_be_in_several_parts() -> None:
    """As models take them: a tensor for each collection."""
    module = TwoTowers()
    users = batch({"id_id": 2, "country_id": 3}, samples=8)
    items = batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=8)
    tables = table_set_of(module, [(users, items)]).tables

    assert [each.pooling_factor for each in tables] == [2.0, 3.0, 3.0, 4.0]


class Shared(nn.Module):
    """One collection in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.left = EmbeddingBagCollection(tables=[config("t")], device=META)
        self.right = EmbeddingBagCollection(tables=[config("t")], device=META)
        self.right.embedding_bags["t"].weight = self.left.embedding_bags["t"].weight


class TwoNames(nn.Module):
    """One collection under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.left = self.right = EmbeddingBagCollection(tables=[config("t")], device=META)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "Linear has no EmbeddingBagCollection or EmbeddingCollection that one of the sharders takes"),
        (
            QuantEmbeddingBagCollection(
                [config("t", data_type=TorchRecType.INT8)], is_weighted=False, device=torch.device("cpu")
            ),
            "the module is a torchrec.quant.embedding_modules.EmbeddingBagCollection; plans cover",
        ),
        (Shared(), r"table right\.t is the same parameter as left\.t"),
        (TwoNames(), r"table right\.t is the same parameter as left\.t"),
        (EmbeddingBagCollection(tables=[config("t", columns=10)], device=META), "multiple of 4"),
        (EmbeddingBagCollection(tables=[config("t", data_type=TorchRecType.INT8)], device=META), "INT8"),
    ],
    ids=["no-tables", "quantized", "shared", "two-names", "width", "type"],
)
def test_what_cannot_be_planned_is_named(module: nn.Module, message: str) -> None:
    """One sentence, before anything is searched."""
    with pytest.raises(DropInError, match=message):
        table_set_of(module)


UNLIKE_SIZES = KeyedJaggedTensor(
    keys=["a", "b"],
    values=torch.arange(5),
    lengths=torch.ones(5, dtype=torch.int32),
    stride_per_key_per_rank=[[2], [3]],
)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([batch({"other": 1}, samples=4)], r"no feature 'a' of table 't', only 'other'"),
        ([batch({"a": 1}, samples=4, ids=5000)], r"id \d+ for table 't' of 100 rows"),
        ([batch({"a": 1}, samples=4, lowest=-5, ids=-4)], r"id -5 for table 't' of 100 rows"),
        ([UNLIKE_SIZES], "features of unlike numbers of samples"),
        ([batch({"a": 1}, samples=4), batch({"a": 1}, samples=8)], "have 4, 8 samples; hint: give equal batches"),
        ([(batch({"a": 1}, samples=4), batch({"b": 1}, samples=8))], "have 4, 8 samples; hint: give equal batches"),
        ({"a": torch.arange(4)}, "found a dict; hint: give KeyedJaggedTensors, or tuples of them"),
        (torch.arange(4), "found a Tensor; hint: give KeyedJaggedTensors"),
        (7, "found a int; hint: give KeyedJaggedTensors"),
        ([{"a": torch.arange(4)}], "has a dict among the batches; hint: give KeyedJaggedTensors"),
        ([(batch({"a": 1}, samples=4), torch.arange(4))], "has a Tensor among the batches"),
        ([()], "a batch is empty"),
        (map(int, ["x"]), "reading them failed: ValueError: invalid literal"),
    ],
    ids=[
        "feature",
        "range",
        "negative",
        "unlike",
        "sizes",
        "parts",
        "dict",
        "tensor",
        "number",
        "of-dicts",
        "in-a-tuple",
        "no-parts",
        "unreadable",
    ],
)
def test_batches_of_another_model_are_refused(batches: object, message: str) -> None:
    """With the table and what was found."""
    module = EmbeddingBagCollection(tables=[config("t", rows=100, features=("a",))], device=META)

    with pytest.raises(DropInError, match=message):
        table_set_of(module, batches)


def test_a_module_on_a_device_gives_the_same_tables_as_on_meta() -> None:
    """Weights are not read."""
    assert table_set_of(TwoTowers(torch.device("cpu"))) == table_set_of(TwoTowers())


def optimized(*classes: type[torch.optim.Optimizer]) -> TwoTowers:
    """Return two towers, the tables of each with an optimizer of the backward pass."""
    module = TwoTowers()
    for collection, each in zip((module.users, module.items), classes, strict=False):
        _apply_optimizer_in_backward(each, collection.parameters(), {"lr": 0.1})
    return module


@pytest.mark.parametrize(
    ("classes", "of_all", "own"),
    [
        ((), None, [None] * 4),
        ((RowWiseAdagrad, RowWiseAdagrad), Optimizer.ROWWISE_ADAGRAD, [None] * 4),
        ((torch.optim.Adam, torch.optim.SGD), Optimizer.ADAM, [None, None, Optimizer.SGD, Optimizer.SGD]),
        ((torch.optim.Adam,), None, [Optimizer.ADAM, Optimizer.ADAM, None, None]),
    ],
    ids=["none", "one", "two", "of-some"],
)
def test_a_table_set_has_the_optimizers_of_the_backward_pass(
    classes: tuple[type[torch.optim.Optimizer], ...], of_all: Optimizer | None, own: list[Optimizer | None]
) -> None:
    """The most frequent is the set's where all tables have one; the others are their tables' own."""
    found = table_set_of(optimized(*classes))

    assert (found.optimizer, [each.optimizer for each in found.tables]) == (of_all, own)


def test_an_optimizer_of_unknown_state_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The table set has no optimizers then."""
    assert table_set_of(optimized(torch.optim.Adamax)).optimizer is None
    assert "is trained by Adamax, whose state is not priced" in caplog.text
