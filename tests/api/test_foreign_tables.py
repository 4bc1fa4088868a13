"""Tables as TorchRec's scripts have them."""

import json
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.table_files import read_table_set
from neuroshard_api.documents.tables import DataType, Pooling, TableSet

CONFIG: dict[str, Any] = {  # dataclasses.asdict of an EmbeddingBagConfig of TorchRec 1.9
    "num_embeddings": 1000,
    "embedding_dim": 64,
    "name": "shop",
    "data_type": "FP16",
    "feature_names": ["bought", "seen"],
    "weight_init_max": None,
    "weight_init_min": None,
    "num_embeddings_post_pruning": None,
    "init_fn": None,
    "need_pos": False,
    "input_dim": None,
    "total_num_buckets": None,
    "use_virtual_table": False,
    "virtual_table_eviction_policy": None,
    "enable_embedding_update": False,
    "stash_weights": False,
    "pooling": "PoolingType.MEAN",
}


def read(raw: object, folder: Path) -> TableSet:
    """Return the tables of a JSON file of the data."""
    file = folder / "tables.json"
    file.write_text(json.dumps(raw))
    return read_table_set(file)


def test_a_list_of_configurations_is_a_table_set(tmp_path: Path) -> None:
    """A JSON encoder writes enums by value or with their class; lookups are one for each feature, as of a module."""
    (found,) = read([CONFIG], tmp_path).tables

    assert (found.name, found.num_embeddings, found.embedding_dim) == ("shop", 1000, 64)
    assert (found.data_type, found.pooling, found.pooling_factor) == (DataType.FP16, Pooling.MEAN, 2.0)


def test_configurations_without_pooling_are_sequences(tmp_path: Path) -> None:
    """As `asdict` gives those of an EmbeddingCollection; a list by hand that leaves pooling out has sums."""
    whole = {field: value for field, value in CONFIG.items() if field != "pooling"}
    by_hand = {"name": "shop", "num_embeddings": 1000, "embedding_dim": 64}

    assert [read([each], tmp_path).tables[0].pooling for each in (whole, by_hand)] == [Pooling.NONE, None]


def test_names_that_table_sets_do_not_allow_are_written_as_for_a_model(tmp_path: Path) -> None:
    """With underscores, and numbers where these make names equal."""
    wanted = ["user id", "商品", "地区"]
    raw = [{**CONFIG, "name": name, "feature_names": [f"{name} seen"]} for name in wanted]
    found = read(raw, tmp_path).tables

    assert [each.name for each in found] == ["user_id", "__", "__.2"]
    assert [each.feature_names for each in found] == [("user_id_seen",), ("___seen",), ("___seen",)]
    with pytest.raises(DocumentError, match="'user_id'"):
        read([raw[0], raw[0]], tmp_path)


@pytest.mark.parametrize(
    ("rows", "lookups"), [([400, 39, 17], [3, 2, 1]), ("400,39,17", "3,2,1"), ("400, 39.0, 17", None)]
)
def test_the_lists_of_mlperfs_script_are_a_table_set(rows: object, lookups: object, tmp_path: Path) -> None:
    """As its flags have them, or as lists; without multi_hot_sizes a feature has one lookup."""
    raw = {"num_embeddings_per_feature": rows, "embedding_dim": 128}
    found = read(raw if lookups is None else {**raw, "multi_hot_sizes": lookups}, tmp_path).tables

    assert [each.num_embeddings for each in found] == [400, 39, 17]
    assert [each.pooling_factor for each in found] == ([1.0] * 3 if lookups is None else [3.0, 2.0, 1.0])
    assert {each.embedding_dim for each in found} == {128}
    assert [each.name for each in found] == ["t_cat_0", "t_cat_1", "t_cat_2"]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ([], "tables"),
        (["shop"], r"\[0\]: must hold the fields of a table \(found 'shop'\)"),
        ([{**CONFIG, "rows": 3}], r"tables\[0\].rows"),
        ([{**CONFIG, "use_virtual_table": True}], r"\[0\].use_virtual_table: virtual tables are not planned"),
        ([{**CONFIG, "embedding_dim": 30}], r"tables\[0\].embedding_dim: must be a multiple of 4"),
        ([{"name": "a"}], r"tables\[0\].num_embeddings: is missing"),
        ({"num_embeddings_per_feature": [4]}, "embedding_dim: is missing"),
        ({"num_embeddings_per_feature": "4,x", "embedding_dim": 8}, "num_embeddings_per_feature: must be a list"),
        ({"num_embeddings_per_feature": 4, "embedding_dim": 8}, "num_embeddings_per_feature: must be a list"),
        ({"num_embeddings_per_feature": [4], "embedding_dim": 8, "dim": 1}, "dim: is not known"),
        (
            {"num_embeddings_per_feature": [4], "embedding_dim": 8, "multi_hot_sizes": [1, 2]},
            "multi_hot_sizes: has 2 entries, num_embeddings_per_feature has 1",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_field(raw: object, problem: str, tmp_path: Path) -> None:
    """In the words of the file."""
    with pytest.raises(DocumentError, match=problem):
        read(raw, tmp_path)
