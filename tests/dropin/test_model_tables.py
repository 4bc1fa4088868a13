import pytest
import torch
from dropin_models import META, TwoTowers, batch, config
from neuroshard_api.tables import DataType, Pooling
from neuroshard_torchrec import DropInError, model_tables, table_set_of
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModuleCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
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
    tables = model_tables(TwoTowers(), constraints=limits).table_set.tables

    assert {table.name: table.pooling_factor for table in tables}["tags"] == 7.5


class Sequences(nn.Module):
    """A collection that returns every row that it looks up."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingConfig(name="t", num_embeddings=10, embedding_dim=8, feature_names=["f"])
        self.history = EmbeddingCollection(tables=[table], device=META)


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
        (nn.Linear(2, 2), "Linear has no EmbeddingBagCollection"),
        (Sequences(), "history is a EmbeddingCollection"),
        (Shared(), r"table right\.t is the same parameter as left\.t"),
        (TwoNames(), r"table right\.t is the same parameter as left\.t"),
        (EmbeddingBagCollection(tables=[config("t", columns=10)], device=META), "multiple of 4"),
        (EmbeddingBagCollection(tables=[config("t", data_type=TorchRecType.INT8)], device=META), "INT8"),
    ],
    ids=["no-tables", "sequences", "shared", "two-names", "width", "type"],
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
        ([batch({"a": 0}, samples=4)], "has no ids in the sample batches"),
        ([batch({"a": 1}, samples=4), batch({"a": 1}, samples=8)], "have 4, 8 samples; give equal batches"),
    ],
    ids=["feature", "range", "negative", "unlike", "empty", "sizes"],
)
def test_batches_of_another_model_are_refused(batches: list[object], message: str) -> None:
    """With the table and what was found."""
    module = EmbeddingBagCollection(tables=[config("t", rows=100, features=("a",))], device=META)

    with pytest.raises(DropInError, match=message):
        table_set_of(module, batches)


def test_a_module_on_a_device_gives_the_same_tables_as_on_meta() -> None:
    """Weights are not read."""
    assert table_set_of(TwoTowers(torch.device("cpu"))) == table_set_of(TwoTowers())
