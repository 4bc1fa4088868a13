"""Tables as TorchRec's scripts have them, turned into a table set's plain data.

A list of the fields of ``EmbeddingBagConfig`` or ``EmbeddingConfig``, as `dataclasses.asdict` and a JSON encoder give
them; or the lists that DLRM's scripts and MLPerf's benchmark take: ``num_embeddings_per_feature``,
``multi_hot_sizes``, ``embedding_dim``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import Pooling, TableSet, allowed_name, distinct_names

ROWS, LOOKUPS, COLUMNS = "num_embeddings_per_feature", "multi_hot_sizes", "embedding_dim"
"""Of DLRM's scripts: rows and lookups of each table, and columns of all. Lists, or words with commas between."""

_WITHOUT_EFFECT = frozenset(
    {
        "weight_init_max",
        "weight_init_min",
        "num_embeddings_post_pruning",
        "init_fn",
        "need_pos",
        "input_dim",
        "total_num_buckets",
        "virtual_table_eviction_policy",
        "enable_embedding_update",
        "stash_weights",
    }
)
"""Fields of EmbeddingBagConfig that say nothing of where a table is placed."""


_IN_EVERY_CONFIG = frozenset({"init_fn", "need_pos"})
"""Fields that `asdict` gives of an EmbeddingBagConfig, which has `pooling` too, and of an EmbeddingConfig."""


def are_foreign_tables(raw: object) -> bool:
    """Return whether plain data is one of these forms."""
    return isinstance(raw, list) or (isinstance(raw, dict) and ROWS in raw)


def table_set_of_data(raw: object, *, where: str, name: str) -> TableSet:
    """Return plain data as a table set, which it is or stands for.

    Args:
        raw: as JSON or YAML parsers give it.
        where: what errors call it.
        name: of the set, where the data has none.

    Raises:
        DocumentError: it is none, or one of its tables cannot be planned.
    """
    if isinstance(raw, list):
        tables = [_of_config(each, f"[{index}]", where) for index, each in enumerate(raw)]
        return _whole(_with_allowed_names(tables), where, name)
    if isinstance(raw, dict) and ROWS in raw:
        return _whole(_of_lists(raw, where), where, name)
    return TableSet.from_data(raw, where=where)


def _whole(tables: list[Mapping[str, Any]], where: str, name: str) -> TableSet:
    return TableSet.from_data({"schema_version": TableSet.schema_name, "name": name, "tables": tables}, where=where)


def _of_config(raw: object, position: str, where: str) -> Mapping[str, Any]:
    """Return a table of the fields of an EmbeddingBagConfig, with one lookup for each feature, as models alone say."""
    if not isinstance(raw, dict):
        raise DocumentError(where, [f"{position}: must hold the fields of a table (found {raw!r:.40})"])
    if raw.get("use_virtual_table"):
        raise DocumentError(
            where, [f"{position}.use_virtual_table: virtual tables are not planned; hint: leave it out"]
        )
    fields = {field: value for field, value in raw.items() if field not in {*_WITHOUT_EFFECT, "use_virtual_table"}}
    for field in {"data_type", "pooling"} & fields.keys():  # str() of an enum has its class before it
        fields[field] = str(fields[field]).rpartition(".")[2]
    if "pooling" not in raw and raw.keys() >= _IN_EVERY_CONFIG:  # asdict of an EmbeddingConfig: sequences
        fields["pooling"] = Pooling.NONE.value
    features = fields.get("feature_names")
    lookups = float(len(features)) if _are_texts(features) and features else 1.0
    return {"pooling_factor": lookups, **fields}


def _with_allowed_names(tables: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return tables under the names that a TorchRec model's tables are planned under.

    Names that are equal as they are stay so, which is an error of the list.
    """
    names = [each.get("name") for each in tables]
    if not _are_texts(names) or not all(names):
        return tables
    own = list(dict.fromkeys(names))
    allowed = dict(zip(own, distinct_names([allowed_name(name) for name in own]), strict=True))
    return [
        {**each, "name": allowed[name]}
        | ({"feature_names": list(map(allowed_name, of))} if _are_texts(of := each.get("feature_names")) else {})
        for each, name in zip(tables, names, strict=True)
    ]


def _are_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _of_lists(raw: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
    """Return tables by the names that DLRM's scripts give them."""
    problems = [
        f"{field}: is not known next to {ROWS}; hint: give {ROWS}, {LOOKUPS}, and {COLUMNS} alone"
        for field in raw
        if field not in {ROWS, LOOKUPS, COLUMNS}
    ]
    if COLUMNS not in raw:
        problems.append(
            f"{COLUMNS}: is missing; hint: give the columns of all tables, as --embedding_dim of the script"
        )
    rows, problem = _numbers(raw[ROWS], ROWS)
    lookups, other = _numbers(raw.get(LOOKUPS, [1] * len(rows)), LOOKUPS)
    problems += [each for each in (problem, other) if each]
    if not problems and len(lookups) != len(rows):
        problems.append(f"{LOOKUPS}: has {len(lookups)} entries, {ROWS} has {len(rows)}; hint: give one of each table")
    if problems:
        raise DocumentError(where, problems)
    return [
        {
            "name": f"t_cat_{index}",
            "num_embeddings": count,
            "embedding_dim": raw[COLUMNS],
            "pooling_factor": factor,
            "feature_names": [f"cat_{index}"],
        }
        for index, (count, factor) in enumerate(zip(rows, lookups, strict=True))
    ]


def _numbers(given: Any, field: str) -> tuple[list[float], str]:  # noqa: ANN401 - what is no list is told
    """Return a list of numbers, or of words of them, and what is wrong with it; empty: nothing."""
    listed: list[Any] = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else [None]
    try:
        return [float(each) for each in listed], ""
    except (TypeError, ValueError):
        return [], f"{field}: must be a list of numbers, or numbers with commas between (found {str(given)[:60]!r})"
