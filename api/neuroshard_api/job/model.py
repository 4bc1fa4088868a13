"""What a DLRMTrainingJob trains: the ``spec.model`` of the custom resource."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from neuroshard_api.documents.tables import (
    DataType,
    EmbeddingDim,
    IdRule,
    Optimizer,
    Pooling,
    Table,
    TableName,
    TableSet,
)
from neuroshard_api.job.resource import ATOMIC, INT_OR_STRING, Checked, Name, Part, PositiveDecimal, Rule, Unique
from neuroshard_api.sharding.kernels import TRAINING_KERNELS

MAX_BATCH_SIZE = 2**24
"""Samples of a device in a step."""
DEFAULT_BATCH_SIZE: Final = 8192
"""Samples of a device in a step, for which the default learning rates are."""
AUTO: Final = "Auto"


def _is_batch_size(value: object) -> bool:
    return value == AUTO or (isinstance(value, int) and 1 <= value <= MAX_BATCH_SIZE)


BatchSize = Annotated[
    int | Literal["Auto"],
    Checked(
        rules=(
            Rule(
                cel=f"type(self) == int ? self >= 1 && self <= {MAX_BATCH_SIZE} : self == '{AUTO}'",
                message=f"must be a whole number of 1 to {MAX_BATCH_SIZE:,}, or {AUTO}",
                holds=_is_batch_size,
            ),
        ),
        schema=INT_OR_STRING,
    ),
]
"""Samples of a device in a step, or that the plan chooses them."""
MAX_INLINE_TABLES = 512
"""Tables in the resource itself; more come from a ConfigMap, since the API server refuses large objects."""


class Architecture(StrEnum):
    """How the trainer joins embeddings and dense features."""

    DLRM = "DLRM"
    """Dot products of all pairs of embeddings; those of narrower tables are projected to the widest."""
    DCN_V2 = "DCNv2"
    """A low-rank cross network over all embeddings side by side."""
    WUKONG = "Wukong"
    """Stacked factorization machines; embeddings of narrower tables are projected to the widest."""


class EmbeddingOptimizer(StrEnum):
    """Optimizer that is fused into the backward pass of the embedding tables."""

    SGD = "SGD"
    ROWWISE_ADAGRAD = "RowWiseAdagrad"
    ADAGRAD = "Adagrad"
    ADAM = "Adam"

    @property
    def optimizer(self) -> Optimizer:
        """The same in the words of the other documents."""
        return Optimizer[self.name]


class BagPooling(StrEnum):
    """How the rows that a sample looks up become one vector; the words of table sets."""

    SUM = "SUM"
    MEAN = "MEAN"

    @property
    def pooling(self) -> Pooling:
        """The same in the words of the other documents."""
        return Pooling[self.name]


class EmbeddingTable(Part):
    """One embedding table."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!(self.dataType in ['BF16', 'INT8'])",
            message="dataType BF16 and INT8 have no training kernel on any device; hint: use FP32 or FP16",
            holds=lambda table: any(table.data_type in each.weight_types for each in TRAINING_KERNELS.values()),
        ),
    )

    name: TableName
    """Name of the table, unique within the job."""
    num_embeddings: Annotated[int, Field(ge=1, le=10**13)]
    """Rows of the table."""
    embedding_dim: EmbeddingDim
    """Columns of the table: elements of a row. A multiple of 4, as FBGEMM's kernels need."""
    pooling_factor: PositiveDecimal = 1
    """Mean lookups per sample over all features of the table. Fractions are written as text, such as '2.5'."""
    data_type: DataType = DataType.FP32
    """Type of the stored weights; decides memory and speed."""
    pooling: BagPooling | None = None
    """How the rows that a sample looks up become one vector: their sum or their mean. Tables of means cannot be cut by
    rows next to other tables. If unset: the sum."""
    feature_names: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(max_length=64, json_schema_extra=ATOMIC),
    ] = ()
    """Features that look this table up. Empty: one feature of the table's own name."""
    zipf_exponent: PositiveDecimal | None = None
    """Skew of the lookups: the frequency of the row of rank r is proportional to 1 / r ** zipfExponent. Fractions are
    written as text. If unset: the planner's default, which was fitted to published traces."""
    id_rule: IdRule | None = None
    """The row that an id of the data looks up. Exact: the id is the row, and one outside the table is an error. Modulo:
    id modulo rows. Hash: xxh64 of the id modulo rows, for texts and for integers that number no rows. If unset: Modulo
    for Criteo's formats, whose ids are hashes, and Exact for Parquet, CSV and NPZ. Other formats give rows."""
    colocation_group: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Tables of one group are placed whole on one device. If unset: the planner is free."""

    @property
    def table(self) -> Table:
        """The same as a table of a TableSet."""
        return Table(
            name=self.name,
            num_embeddings=self.num_embeddings,
            embedding_dim=self.embedding_dim,
            pooling_factor=float(self.pooling_factor),
            data_type=self.data_type,
            pooling=None if self.pooling is None else self.pooling.pooling,
            feature_names=self.feature_names,
            zipf_exponent=None if self.zipf_exponent is None else float(self.zipf_exponent),
            id_rule=self.id_rule,
            colocation_group=self.colocation_group,
        )


class ConfigMapKey(Part):
    """One key of a ConfigMap in the job's namespace."""

    name: Name
    """Name of the ConfigMap."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
    """Key in its data or binaryData."""


ONLY_LOCAL_FILE = (
    "file is read on one machine alone, by `neuroshard run`; hint: make a ConfigMap of it, `kubectl create configmap "
    "NAME --from-file FILE`, and name that in configMapKeyRef"
)


class TablesSource(Part):
    """Where a large set of tables is stored."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.configMapKeyRef) || has(self.file)",  # of both, the next rule tells
            message="set exactly one of configMapKeyRef and file",
            holds=lambda source: (source.config_map_key_ref is None) != (source.file is None),
        ),
        Rule(
            cel="!has(self.file)",
            message=ONLY_LOCAL_FILE,
        ),
    )

    config_map_key_ref: ConfigMapKey | None = None
    """Key that holds a table set as `neuroshard plan` reads it. The key's suffix says how it is written: .json, .yaml
    or .csv, each also gzipped with .gz behind it (in binaryData), since a ConfigMap holds at most 1 MiB. If unset:
    file."""
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File of the table set on this machine, for `neuroshard run`; a cluster refuses it. A relative path is below the
    job file's folder. If unset: configMapKeyRef."""


class CrossNetwork(Part):
    """The cross network of DCNv2."""

    num_layers: Annotated[int, Field(ge=1, le=64)] = 3
    """Cross layers."""
    low_rank_dim: Annotated[int, Field(ge=1, le=8192)] = 512
    """Rank of each layer's weight matrix."""


LayerSizes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=65536)], ...],
    Field(max_length=32, json_schema_extra=ATOMIC),
]


class WukongLayers(Part):
    """The interaction of Wukong: layers that each take and return vectors as wide as the widest table."""

    num_layers: Annotated[int, Field(ge=1, le=64)] = 3
    """Layers; layer i sees interactions of up to 2 ** i features."""
    num_interactions: Annotated[int, Field(ge=1, le=4096)] = 16
    """Vectors that a layer makes of dot products of pairs; it makes as many as linear combinations of its inputs."""
    low_rank_dim: Annotated[int, Field(ge=1, le=4096)] = 24
    """Columns to which the dot products of a vector with all others are projected."""
    layer_sizes: LayerSizes = (512, 512)
    """Widths of the hidden layers between the dot products and the vectors made of them."""

    @property
    def num_outputs(self) -> int:
        """Vectors that a layer returns."""
        return 2 * self.num_interactions


class Model(Part):
    """The model: its embedding tables, which are planned, and its dense part, which every device holds."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.embeddingTables) != has(self.embeddingTablesFrom)",
            message="set exactly one of embeddingTables and embeddingTablesFrom",
            holds=lambda model: (model.embedding_tables is None) != (model.embedding_tables_from is None),
        ),
        Rule(
            cel="self.architecture == 'DCNv2' || !has(self.crossNetwork)",
            message="crossNetwork is for the architecture DCNv2 only",
            holds=lambda model: model.architecture is Architecture.DCN_V2 or model.cross_network is None,
        ),
        Rule(
            cel="self.architecture == 'Wukong' || !has(self.wukong)",
            message="wukong is for the architecture Wukong only",
            holds=lambda model: model.architecture is Architecture.WUKONG or model.wukong is None,
        ),
    )

    embedding_tables: (
        Annotated[
            tuple[EmbeddingTable, ...],
            Field(min_length=1, max_length=MAX_INLINE_TABLES),
            Unique(key="name"),
        ]
        | None
    ) = None
    """The embedding tables. Larger sets: embeddingTablesFrom."""
    embedding_tables_from: TablesSource | None = None
    """A ConfigMap, or a file of a local run, with the embedding tables, for sets too large for the resource."""
    batch_size_per_device: BatchSize = DEFAULT_BATCH_SIZE
    """Samples per device and step; an embedding shard serves the batches of all devices. Auto: the plan chooses from
    512 to 65,536, the smallest within 2 % of the most samples per second that fit. Learning rates are then those at
    8,192 samples per device, and follow linearly, by the share of samples."""
    embedding_optimizer: EmbeddingOptimizer = EmbeddingOptimizer.ROWWISE_ADAGRAD
    """Optimizer of the tables, fused into their backward pass. Decides the memory of its state: none for SGD, one
    number per row for RowWiseAdagrad, one per element for Adagrad, two for Adam."""
    architecture: Architecture = Architecture.DLRM
    """How the trainer joins embeddings and dense features: DLRM by dot products, DCNv2 by a cross network, Wukong by
    stacked factorization machines."""
    num_dense_features: Annotated[int, Field(ge=0, le=4096)] = 13
    """Numbers per sample in addition to the table lookups; Criteo's data has 13. 0: the model joins embeddings alone,
    and DLRM passes the embeddings themselves on next to their dot products."""
    dense_arch_layer_sizes: LayerSizes = (512, 256)
    """Widths of the hidden layers that the dense features pass; a last layer as wide as the widest table follows.
    Without dense features there is no such layer."""
    over_arch_layer_sizes: LayerSizes = (512, 512, 256)
    """Widths of the hidden layers above the interaction; a last layer of width 1, the logit, follows them."""
    cross_network: CrossNetwork | None = None
    """Size of the cross network; for DCNv2 only. If unset: 3 layers of rank 512."""
    wukong: WukongLayers | None = None
    """Size of the interaction of Wukong; for that architecture only. If unset: 3 layers of 32 vectors."""

    @property
    def chooses_batch_size(self) -> bool:
        """Whether the plan chooses the samples per device."""
        return self.batch_size_per_device == AUTO

    @property
    def samples_per_device(self) -> int:
        """Samples per device and step; those that learning rates are given for where the plan chooses others."""
        given = self.batch_size_per_device
        return given if isinstance(given, int) else DEFAULT_BATCH_SIZE

    @property
    def cross(self) -> CrossNetwork:
        """The cross network's size, given or not."""
        return self.cross_network or CrossNetwork()

    @property
    def wukong_layers(self) -> WukongLayers:
        """The size of Wukong's interaction, given or not."""
        return self.wukong or WukongLayers()

    def inline_tables(self, name: str) -> TableSet | None:
        """Return the resource's own tables as a TableSet of this name; None where they lie in a ConfigMap."""
        if self.embedding_tables is None:
            return None
        return TableSet(
            name=name,
            optimizer=self.embedding_optimizer.optimizer,
            tables=tuple(each.table for each in self.embedding_tables),
        )
