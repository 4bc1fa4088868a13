"""The models of several variants on one batch: one collection with the tables of all, a dense part for each.

    lookups -> tables (VARIANT:TABLE, each feature once in the batch) -> feature@table by name
    dense features + a variant's features -> variants.VARIANT -> its column of the logits

Nothing is shared but the samples: a variant's loss has no gradient at another one's weights. So each trains as in a job
of its own.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.training import Training
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, tables_of_variant
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.model.dlrm import DotProducts, RecommendationModel, Run, bag_collection, runs_of

torch.fx.wrap("runs_of")  # by its name here: TorchRec's pipeline traces the model with placeholders

_VARIANTS_PATH = "variants"
_DENSE = re.compile(rf"(^|\.){_VARIANTS_PATH}\.(?P<variant>[^.]+)\.")
_TABLE = re.compile(r"(^|\.)embedding_bags\.(?P<variant>[^.:]+):")


class VariantModel(nn.Module):
    """All variants of a job.

    Args:
        job: with variants. Each one's first weights are drawn from its seed.
        tables: of all of them.
    """

    def __init__(self, job: DLRMTrainingJob, tables: Sequence[Table]) -> None:
        super().__init__()
        self.tables = bag_collection(tables)
        self.variants = nn.ModuleDict()
        self._groups: list[list[str]] = []
        """Names of the features' outputs of the collection, by what a variant takes at once: all, or one by one."""
        for name, own in expanded(job).items():
            own_tables = tables_of_variant(tables, name)
            torch.manual_seed(own.spec.training.seed)
            part = self.variants[name] = _DensePart(own, own_tables)
            keys = [f"{feature.name}@{name}:{feature.table.name}" for feature in features_of(own_tables)]
            self._groups += [keys] if part.joins_runs else [[key] for key in keys]

    def forward(self, dense: torch.Tensor, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return the logits, shape (samples, variants)."""
        embedded = [part.embed(dense) for part in self._parts()]
        runs = runs_of(self.tables(lookups), self._groups)
        begin, logits = 0, []
        for part, own in zip(self._parts(), embedded, strict=True):
            logits.append(part(own, runs[begin : begin + part.num_groups]))
            begin += part.num_groups
        return torch.stack(logits, dim=1)

    def _parts(self) -> "list[_DensePart]":
        return [part for part in self.variants.values() if isinstance(part, _DensePart)]


class _DensePart(nn.Module):
    """What a RecommendationModel has next to its tables."""

    def __init__(self, job: DLRMTrainingJob, tables: Sequence[Table]) -> None:
        super().__init__()
        whole = RecommendationModel(job.spec.model, tables)
        self.dense_arch = whole.dense_arch
        self.interaction = whole.interaction
        self.over_arch = whole.over_arch
        self.joins_runs = isinstance(self.interaction, DotProducts) and self.interaction.joins_runs
        """Whether it takes all features at once."""
        self._features = [feature.name for feature in features_of(tables)]

    @property
    def num_groups(self) -> int:
        """Groups of features that `forward` takes."""
        return 1 if self.joins_runs else len(self._features)

    def embed(self, dense: torch.Tensor) -> torch.Tensor:
        """Return the dense embedding."""
        embedded: torch.Tensor = self.dense_arch(dense)
        return embedded

    def forward(self, embedded_dense: torch.Tensor, runs: Sequence[list[Run]]) -> torch.Tensor:
        """Return the logits, shape (samples,).

        Args:
            embedded_dense: of `embed`.
            runs: of each group of features.
        """
        if self.joins_runs:
            joined = self.interaction(embedded_dense, None, runs[0])
        else:
            pooled = {name: runs[group][0].values for group, name in enumerate(self._features)}
            joined = self.interaction(embedded_dense, pooled)
        logits: torch.Tensor = self.over_arch(joined)
        return logits.squeeze(1)


def path_of_variant(variant: str, module: str) -> str:
    """Return the path in a VariantModel of a module of the dense part of a variant's own model."""
    return f"{_VARIANTS_PATH}.{variant}.{module}"


def variant_of(parameter: str) -> str | None:
    """Return the variant that a parameter of a VariantModel belongs to; None: it is of another model."""
    found = _DENSE.search(parameter) or _TABLE.search(parameter)
    return None if found is None else found["variant"]


def own_name(parameter: str) -> str:
    """Return the name of a variant's parameter in the model of its own job."""
    return _TABLE.sub(r"\1embedding_bags.", _DENSE.sub(r"\1", parameter))


def trainings(job: DLRMTrainingJob) -> dict[str, Training]:
    """Return the settings of each variant's training, by its name; empty: there are none."""
    return {name: own.spec.training for name, own in expanded(job).items()}


def rate_of_table(variants: Mapping[str, Training], parameter: str) -> float:
    """Return the learning rate of a table of a variant."""
    name = variant_of(parameter)
    assert name is not None, "each table is a variant's"
    return float(variants[name].embedding_learning_rate)
