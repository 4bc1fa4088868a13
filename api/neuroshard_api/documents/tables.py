"""Embedding tables as a model declares them, in the words of TorchRec's EmbeddingBagConfig."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from neuroshard_api.documents.counts import Whole
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.sharding.kernels import DIM_MULTIPLE, DataType, Optimizer, trained_weights

__all__ = [
    "DIM_MULTIPLE",
    "REUSE_BINS",
    "DataType",
    "EmbeddingDim",
    "IdRule",
    "Optimizer",
    "Pooling",
    "ReuseHistogram",
    "Table",
    "TableName",
    "TableSet",
]

REUSE_BINS = 17
"""Bins of a reuse histogram: hits of a row in one batch in (0,1], (1,2], (2,4], ... (16384,32768], above."""

MAX_FEATURES = 4096
"""Most features of one table: pooled vectors of 128 columns then take 2 MiB per sample."""

MAX_ROWS = 10**13
"""Most rows of one table."""
MAX_WIDTH = 8192
"""Most elements of a row."""


def kernel_width(width: int) -> int:
    """Return a width that FBGEMM's kernels have. Raises ValueError for others."""
    if width < 1:
        raise ValueError(f"must be at least {DIM_MULTIPLE} columns, found {width}")
    if width % DIM_MULTIPLE:
        raise ValueError(
            f"must be a multiple of {DIM_MULTIPLE} (FBGEMM's kernels read vectors of {DIM_MULTIPLE}), "
            f"found {width}; hint: pad the table to {width + DIM_MULTIPLE - width % DIM_MULTIPLE}"
        )
    return width


EmbeddingDim = Annotated[
    int,
    Field(le=MAX_WIDTH, json_schema_extra={"minimum": DIM_MULTIPLE, "multipleOf": DIM_MULTIPLE}),
    AfterValidator(kernel_width),
    Whole,
]


def _shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    total = sum(shares)
    if abs(total - 1.0) > 0.01:  # noqa: PLR2004 - histograms are published rounded to three digits
        raise ValueError(f"must sum to 1 (within 0.01), found {total:.6g}; hint: divide each bin by the sum")
    return shares


ReuseHistogram = Annotated[
    tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...],
    Field(min_length=REUSE_BINS, max_length=REUSE_BINS),
    AfterValidator(_shares),
]


def _countable_features(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > MAX_FEATURES:
        raise ValueError(
            f"must name at most {MAX_FEATURES:,} features, found {len(names):,}; "
            "hint: divide it, a kernel looks up that many features as several tables"
        )
    return names


_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$"
_NAME_CHARACTERS = 128
TableName = Annotated[str, Field(min_length=1, max_length=_NAME_CHARACTERS, pattern=_NAME)]


def is_table_name(name: str) -> bool:
    """Return whether a table can have a name."""
    return len(name) <= _NAME_CHARACTERS and re.fullmatch(_NAME.strip("^$"), name) is not None


def allowed_name(name: str) -> str:
    """Return a table's or a feature's name with underscores for the characters that table sets do not allow."""
    return re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)


def distinct_names(wanted: Sequence[str]) -> list[str]:
    """Return these names with numbers after those that occur again, as two of other scripts may: `__`, `__.2`."""
    found: dict[str, None] = {}
    for name in wanted:
        count, own = 1, name
        while own in found:
            count += 1
            own = f"{name}.{count}"
        found[own] = None
    return list(found)


class Pooling(StrEnum):
    """How the looked-up rows of a bag become one vector; names as in TorchRec."""

    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"
    """There are no bags: every looked-up row is returned, as TorchRec's EmbeddingCollection does."""


class IdRule(StrEnum):
    """The row of a table that an id of the data looks up."""

    EXACT = "Exact"
    """Row = id. An id outside the table is an error."""
    MODULO = "Modulo"
    """Row = id modulo rows, from 0 on for negative ids too."""
    HASH = "Hash"
    """Row = xxh64 modulo rows, with seed 0: of a text's UTF-8 bytes, or of an integer's 8 bytes in little-endian order.
    The only rule for texts."""


class Table(Value):
    """One embedding table."""

    name: TableName
    """Unique within the set."""
    num_embeddings: Annotated[int, Field(ge=1, le=MAX_ROWS), Whole]
    """Rows."""
    embedding_dim: EmbeddingDim
    """Elements of a row; a multiple of 4."""
    pooling_factor: Annotated[float, Field(gt=0.0, le=1e5)] = 1.0
    """Mean lookups per sample over all features of the table; may be fractional."""
    data_type: Annotated[DataType, AfterValidator(trained_weights)] = DataType.FP32
    """Type of the stored weights."""
    pooling: Pooling | None = None
    """How the rows of a bag become one vector. If unset: sum."""
    is_weighted: bool | None = None
    """Whether each lookup has a weight of 4 bytes, which travels with its index. If unset: no."""
    feature_names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...], AfterValidator(_countable_features)
    ] = ()
    """Features that look this table up; empty means one feature of the table's own name."""
    reuse_histogram: ReuseHistogram | None = None
    """Share of the distinct rows touched in one batch by hits per row, 17 bins; measured at the set's
    reuse_batch_size. None: derived from rows, lookups and zipf_exponent."""
    zipf_exponent: Annotated[float, Field(ge=0.0, le=4.0)] | None = None
    """Skew of the row popularity: the frequency of rank r is proportional to 1 / r ** zipf_exponent; 0 is uniform.
    None: the set's zipf_exponent."""
    id_rule: IdRule | None = None
    """The row that an id of the data looks up, for formats of files. If unset: Modulo for Criteo's formats, whose ids
    are hashes, and Exact for the others."""
    optimizer: Optimizer | None = None
    """Optimizer of this table alone, which decides its state and its backward kernel. If unset: that of all tables."""
    collection: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Module that holds the table, by its path in the model, where the model has several: TorchRec looks up the tables
    of each for themselves. If unset: that of all tables without one."""
    colocation_group: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Tables of one group are placed whole on one device. None: free."""
    duplication_group: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Group of tables whose lists repeat together within sessions, as `neuroshard stats` found it. None: none."""
    duplication_factor: Annotated[float, Field(ge=1.0, le=1e9)] | None = None
    """Samples over distinct lists of the table's duplication group, or of the table if it has none, in runs of the
    set's session_run. None: not measured."""

    @property
    def is_mean(self) -> bool:
        """Whether bags are averaged."""
        return self.pooling is Pooling.MEAN

    @property
    def is_sequence(self) -> bool:
        """Whether every looked-up row is returned."""
        return self.pooling is Pooling.NONE

    @property
    def collection_key(self) -> tuple[str | None, bool]:
        """What tables of one collection have in common: no collection has both bags and sequences."""
        return self.collection, self.is_sequence

    @property
    def name_in_collection(self) -> str:
        """The name without its collection's path, which tables of one name in several collections have before it."""
        return self.name if self.collection is None else self.name.removeprefix(allowed_name(f"{self.collection}/"))

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that look the table up; without any given, the table's own."""
        return self.feature_names or (self.name,)

    @property
    def num_features(self) -> int:
        """Features that look the table up; each has a list of lookups per sample."""
        return len(self.features)

    @property
    def num_vectors(self) -> float:
        """Mean vectors that are returned per sample: one of each feature, or of a sequence one of each lookup."""
        return self.pooling_factor if self.is_sequence else float(self.num_features)

    @model_validator(mode="after")
    def _distinct_features(self) -> Self:
        repeated = sorted(name for name, count in Counter(self.feature_names).items() if count > 1)
        if repeated:
            raise ValueError(f"feature_names: must be distinct, found {repeated[0]!r} more than once; hint: remove one")
        return self

    @model_validator(mode="after")
    def _one_reuse_description(self) -> Self:
        if self.reuse_histogram is not None and self.zipf_exponent is not None:
            raise ValueError("gives both reuse_histogram and zipf_exponent; hint: give one")
        return self


def planned_facts(tables: Iterable[Table]) -> set[tuple[str, int, int, DataType]]:
    """Return the facts that a plan and a model must agree on: name, rows, columns, and data type of each table."""
    return {(each.name, each.num_embeddings, each.embedding_dim, each.data_type) for each in tables}


class TableSet(Document):
    """The tables of one model, with what is known of how the model is trained."""

    schema_name: ClassVar[str] = "table-set/v1"

    schema_version: Literal["table-set/v1"] = "table-set/v1"
    name: Annotated[str, Field(min_length=1, max_length=128)] = "tables"
    """What reports call the set."""
    description: str | None = None
    """One sentence for people: what the model is."""
    source: str | None = None
    """Where the numbers come from."""
    licence: str | None = None
    """Terms of the source."""
    global_batch_size: Annotated[int, Field(ge=1, le=2**31)] | None = None
    """Samples of one step over all devices, as the model is usually trained. None: the planner's default."""
    optimizer: Optimizer | None = None
    """Optimizer the tables are usually trained with. None: the planner's default."""
    zipf_exponent: Annotated[float, Field(ge=0.0, le=4.0)] | None = None
    """Skew of tables that give none of their own. None: the planner's default, fitted to published traces."""
    reuse_batch_size: Annotated[int, Field(ge=1, le=2**31)] = 65536
    """Samples per batch at which every reuse_histogram of the set was measured."""
    session_run: Annotated[int, Field(ge=0, le=2**31)] | None = None
    """Maximum consecutive samples of one session at which every duplication_factor of the set was measured. 0: whole
    sessions. None: not measured."""
    tables: Annotated[tuple[Table, ...], Field(min_length=1, max_length=100_000)]

    @property
    def duplication_groups(self) -> tuple[str, ...]:
        """Names of the groups of bags whose lists repeat together and whose factor is known, in the tables' order."""
        return tuple(
            dict.fromkeys(
                table.duplication_group
                for table in self.tables
                if table.duplication_group is not None
                and table.duplication_factor is not None
                and not table.is_sequence
            )
        )

    @property
    def has_duplication_factors(self) -> bool:
        """Whether the factor of any table is known."""
        return any(table.duplication_factor is not None for table in self.tables)

    @model_validator(mode="after")
    def _factors_of_known_runs(self) -> Self:
        measured = [table.name for table in self.tables if table.duplication_factor is not None]
        if measured and self.session_run is None:
            raise ValueError(
                f"session_run: is needed, since table {measured[0]!r} has a duplication_factor; "
                "hint: give the samples of a run"
            )
        return self

    @model_validator(mode="after")
    def _features_of_one_group(self) -> Self:
        owner: dict[str, Table] = {}
        for table in self.tables:
            if table.duplication_group is None or table.is_sequence:
                continue
            for feature in table.features:
                other = owner.setdefault(feature, table)
                if other.duplication_group != table.duplication_group:
                    raise ValueError(
                        f"tables[].duplication_group: feature {feature!r} is in {other.duplication_group!r} by table "
                        f"{other.name!r}, and in {table.duplication_group!r} by table {table.name!r}; hint: give both "
                        "tables one group"
                    )
        return self

    @model_validator(mode="after")
    def _unique_names(self) -> Self:
        counts = Counter(table.name for table in self.tables)
        repeated = sorted(name for name, count in counts.items() if count > 1)
        if repeated:
            shown = ", ".join(repr(name) for name in repeated[:5])
            raise ValueError(
                f"tables[].name: must be unique, found more than once: {shown}; hint: rename or merge them"
            )
        return self
