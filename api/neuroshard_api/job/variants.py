"""``spec.variants``: models that one trainer trains together, on the same samples and devices.

A variant is the job with a few other settings (`expanded`). Its tables are named ``VARIANT:TABLE`` next to those of the
others and look up the same features, so that one collection holds them all and a batch has each feature once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from pydantic import Field

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import EmbeddingDim, Table, TableSet, is_table_name
from neuroshard_api.documents.trainable_names import MODULE_ATTRIBUTES, is_trainable_name
from neuroshard_api.job.model import Architecture, CrossNetwork, LayerSizes, Model, WukongLayers
from neuroshard_api.job.resource import Part, PositiveDecimal, Rule
from neuroshard_api.job.training import Training

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob

MAX_VARIANTS: Final = 32
_NAME: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_RESERVED = sorted(name for name in MODULE_ATTRIBUTES if re.fullmatch(_NAME, name))


class VariantModelFields(Part):
    """Fields of the model that a variant has of its own."""

    shared_fields: ClassVar[tuple[type[Part], str]] = (Model, "spec.model")
    """What has the other fields, which all variants share, and its path. For messages."""

    embedding_dim: EmbeddingDim | None = None
    """Columns of all tables. If unset: each table's own."""
    architecture: Architecture | None = None
    """If unset: that of spec.model."""
    dense_arch_layer_sizes: LayerSizes | None = None
    """If unset: those of spec.model."""
    over_arch_layer_sizes: LayerSizes | None = None
    """If unset: those of spec.model."""
    cross_network: CrossNetwork | None = None
    """If unset: that of spec.model."""
    wukong: WukongLayers | None = None
    """If unset: those of spec.model."""


class VariantTrainingFields(Part):
    """Fields of the training that a variant has of its own."""

    shared_fields: ClassVar[tuple[type[Part], str]] = (Training, "spec.training")
    """As of `VariantModelFields`."""

    embedding_learning_rate: PositiveDecimal | None = None
    """If unset: that of spec.training."""
    dense_learning_rate: PositiveDecimal | None = None
    """If unset: that of spec.training."""
    gradient_clip_norm: PositiveDecimal | None = None
    """If unset: that of spec.training."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Seed of the initial weights; the samples are those of all variants. If unset: that of spec.training."""


class JobVariant(Part):
    """One of several models that train together."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel=f"!(self.name in {_RESERVED})",
            message="name is an attribute of torch's ModuleDict, whose keys the variants' names are; hint: another one",
            holds=lambda variant: is_trainable_name(variant.name),
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=32, pattern=_NAME)]
    """Name of the variant, of lower-case letters, digits, and hyphens, unique within the job. Metrics, tables, and
    exports have it."""
    model: VariantModelFields = VariantModelFields.model_construct()
    """Its model, where it differs from spec.model."""
    training: VariantTrainingFields = VariantTrainingFields.model_construct()
    """Its training, where it differs from spec.training."""

    def of_model(self, base: Model) -> Model:
        """Return the variant's model. Sizes of another architecture are left out. Raises pydantic's ValidationError."""
        given = {name: value for name, value in self.model if value is not None and name != "embedding_dim"}
        architecture = given.get("architecture", base.architecture)
        other = {
            name: None
            for name, kind in (("cross_network", Architecture.DCN_V2), ("wukong", Architecture.WUKONG))
            if kind is not architecture
        }
        fields = {name: getattr(base, name) for name in base.model_fields_set} | other | given
        if self.model.embedding_dim is not None:
            widths = {"embedding_dim": self.model.embedding_dim}
            fields["embedding_tables"] = tuple(each.model_copy(update=widths) for each in base.embedding_tables or ())
        return Model(**fields)

    def of_training(self, base: Training) -> Training:
        """Return the variant's training."""
        return base.model_copy(update={name: value for name, value in self.training if value is not None})


def expanded(job: "DLRMTrainingJob") -> "Mapping[str, DLRMTrainingJob]":
    """Return the job that each variant is, by its name: a training of that job has the variant's numbers."""
    spec = job.spec
    data = spec.experimental.data.model_copy(update={"seed": spec.sample_seed})
    return {
        each.name: job.model_copy(
            update={
                "spec": spec.model_copy(
                    update={
                        "variants": None,
                        "experimental": spec.experimental.model_copy(update={"data": data}),
                        "model": each.of_model(spec.model),
                        "training": each.of_training(spec.training),
                    }
                )
            }
        )
        for each in spec.variants or ()
    }


def inline_tables(job: "DLRMTrainingJob") -> TableSet | None:
    """Return the tables in the job itself, of all variants. None: they are in a ConfigMap or a file."""
    own = job.spec.model.inline_tables(job.metadata.name)
    return None if own is None else with_variants(own, job.spec.variants)


def with_variants(tables: TableSet, variants: tuple[JobVariant, ...] | None) -> TableSet:
    """Return the tables of all variants; without variants the tables as they are. Raises DocumentError.

    Args:
        tables: of the model.
        variants: of the job.
    """
    if not variants:
        return tables
    found = tuple(_of_variant(table, each) for each in variants for table in tables.tables)
    long = next((table.name for table in found if not is_table_name(table.name)), None)
    if long is not None:
        raise DocumentError(
            "spec.variants", [f"a table would be named {long!r}, which is too long; hint: shorten the variant's name"]
        )
    return tables.model_copy(update={"tables": found})


def without_variants(tables: TableSet, variants: Sequence[JobVariant] | None) -> TableSet:
    """Return tables of all variants as those of the first one, whose features are those of all."""
    if not variants:
        return tables
    return tables.model_copy(update={"tables": tables_of_variant(tables.tables, variants[0].name)})


def variants_in(tables: Sequence[Table]) -> tuple[str, ...]:
    """Return the variants whose tables these are, in their order; empty where they are those of one model.

    Tables of variants are named ``VARIANT:TABLE``, and all variants have the same ones.
    """
    parts = [table.name.partition(":") for table in tables]
    found: dict[str, list[str]] = {}
    for variant, _, own in parts:
        found.setdefault(variant, []).append(own)
    is_set = len(found) > 1 and all(colon for _, colon, _ in parts) and len({*map(tuple, found.values())}) == 1
    return tuple(found) if is_set else ()


def tables_of_variant(tables: Sequence[Table], name: str) -> tuple[Table, ...]:
    """Return a variant's tables among those of all, with the names that they have in its own job."""
    prefix = f"{name}:"
    found = []
    for table in tables:
        if not table.name.startswith(prefix):
            continue
        own = table.name.removeprefix(prefix)
        group = table.colocation_group
        update = {
            "name": own,
            "feature_names": () if table.feature_names == (own,) else table.feature_names,
            "colocation_group": None if group is None else group.removeprefix(prefix),
        }
        found.append(table.model_copy(update=update))
    return tuple(found)


def _of_variant(table: Table, variant: JobVariant) -> Table:
    group = table.colocation_group
    update: dict[str, object] = {
        "name": f"{variant.name}:{table.name}",
        "feature_names": table.features,
        "colocation_group": None if group is None else f"{variant.name}:{group}",
    }
    if variant.model.embedding_dim is not None:
        update["embedding_dim"] = variant.model.embedding_dim
    return table.model_copy(update=update)
