"""The data of a training on one rank: how many samples there are, and the batches of each pass over them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.job.feature_columns import require_feature_columns
from neuroshard_api.job.training import DataFormat
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import DataError
from neuroshard_api.process.processors import usable_processors

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.drift import drifted_sources
from neuroshard_trainer.data.formats import open_source, require_same_ids
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.own_dataset import OwnDataset
from neuroshard_trainer.data.readers import Readers, num_readers
from neuroshard_trainer.data.samples import Feature, features_of
from neuroshard_trainer.data.sessions import Sessions, SessionSource
from neuroshard_trainer.data.source import SampleSource, text_features
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.ranks.process import Process
from neuroshard_trainer.servers.lookups import FarApart, NoSamples

DATA_FOLDER = "data"
"""Of a run directory: what cannot be written next to the data, and the means of its columns."""
COUNTED_SAMPLES = 1024
"""Samples whose lookups are compared with what the tables say."""
OTHER_LOOKUPS = 0.25
"""Share by which lookups may differ from the tables' before a plan made for them is doubted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """Samples in batches of one rank."""

    train: BatchMaker | OwnDataset | NoSamples
    evaluate: BatchMaker | OwnDataset | NoSamples
    """Its batches may be smaller than the training's."""
    num_training: int
    """Samples of an epoch, over all ranks."""
    num_validation: int
    """Samples of an evaluation, over all ranks."""
    readers: Readers
    text_features: tuple[str, ...] = ()
    """Features whose ids are texts by the types of the data."""
    num_groups: int = 0
    """Groups of features whose repeated lists are left out."""
    columns: DataColumns = field(default_factory=DataColumns)
    """Names of the data's columns."""

    @property
    def global_batch_size(self) -> int:
        """Samples of all ranks in a step."""
        return self.train.global_batch_size

    def training(self, positions: range, device: torch.device) -> Iterator[Batch]:
        """Yield the batches that begin at these training samples, counted through all epochs, on a device."""
        return self.readers.batches(self.train.training, positions, device)

    def validation(self, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of one evaluation on a device; each rank has equally many."""
        positions = range(0, self.num_validation, self.evaluate.global_batch_size)
        return self.readers.batches(self.evaluate.validation, positions, device)

    def deduplicated(self, groups: Sequence[DeduplicatedGroup], wire: WireTypes | None = None) -> "TrainingData":
        """Return the same samples in batches without the repeated lists of these groups, in their forms.

        ``wire``: types in which pooled embeddings travel. If unset: as they are.
        """
        if not groups:
            return self
        keys = list(self.readers.keys)
        collate = WithoutRepeats(
            groups=tuple(tuple(keys.index(name) for name in group.features) for group in groups),
            apart=frozenset(
                position for position, group in enumerate(groups) if group.form is DeduplicationForm.GROUPED
            ),
            filled_to=1 if wire is None else wire.least_samples,
        )
        return replace(
            self,
            train=self.train.collating(collate),
            evaluate=self.evaluate.collating(collate),
            num_groups=len(groups),
        )

    def served(self, tables: Sequence[Table], *, has_samples: bool) -> "TrainingData":
        """Return the same samples in batches with the lists of these tables, which are on servers, apart.

        Args:
            tables: on embedding servers.
            has_samples: whether this rank is a trainer.
        """
        keys = list(self.readers.keys)
        far = tuple(keys.index(feature.name) for feature in features_of(tables))
        if not has_samples:
            train, evaluate = (
                NoSamples(num_features=len(keys), positions=far, global_batch_size=each.global_batch_size)
                for each in (self.train, self.evaluate)
            )
            return replace(self, train=train, evaluate=evaluate)
        collate = FarApart(positions=far)
        return replace(self, train=self.train.collating(collate), evaluate=self.evaluate.collating(collate))

    def first_factors(self) -> Sequence[float]:
        """Return samples over distinct ones of each group in the first batch of this rank."""
        if not self.num_groups:
            return ()
        batch = self.train.training(0)
        return [len(batch.labels) / count for count in batch.num_distinct]

    def first_repeats(self) -> dict[str, float]:
        """Return samples over distinct lists by feature, in the first batch of this rank."""
        if not isinstance(self.train, BatchMaker):
            return {}
        keys = self.readers.keys
        alone = WithoutRepeats(groups=tuple((index,) for index in range(len(keys))))
        batch = self.train.collating(alone).training(0)
        return {name: len(batch.labels) / count for name, count in zip(keys, batch.num_distinct, strict=True)}

    def other_lookups(self, features: Sequence[Feature]) -> str | None:
        """Return the difference of the data's lookups per sample from the planned ones; None: it is small."""
        if not isinstance(self.train, BatchMaker):
            return None
        found = sum(self.train.lookups_per_sample(COUNTED_SAMPLES).values())
        planned = sum(feature.pooling_factor for feature in features)
        if abs(found - planned) <= OTHER_LOOKUPS * planned:
            return None
        return f"the plan is for {planned:.4g} lookups per sample, the data has {found:.4g}"


def readers_of(job: DLRMTrainingJob, process: Process) -> int:
    """Return the reader processes of a rank that has samples, of which all have equally many."""
    return num_readers(
        job.spec.experimental.data.reader_processes,
        on_cpu=process.device.type == "cpu",
        num_ranks=process.num_neighbors,
        num_cores=usable_processors(),
    )


def open_training_data(
    job: DLRMTrainingJob, tables: TableSet, process: Process, *, root: Path, spare: Path
) -> TrainingData:
    """Return the data of a job.

    Args:
        job: says where the data is, and how it is split and read.
        tables: of the model; made-up samples have their statistics.
        process: this rank.
        root: what relative paths start from.
        spare: folder for what cannot be written next to the data.

    Raises:
        DataError: there is none, or it lacks what the model needs.
        DocumentError: a feature is another column of the data, such as the label.
        StorageError, MissingPackageError: as open_source.
    """
    data, drawn = job.spec.data, job.spec.experimental.data
    require_feature_columns(job.spec.model, data, tables, where="the plan")
    features = features_of(tables.tables)
    readers = Readers(
        num_processes=0 if process.is_server else readers_of(job, process),
        keys=[feature.name for feature in features],
        pin_memory=process.device.type == "cuda",
        timeout_seconds=job.spec.experimental.rendezvous.timeout_seconds,
    )
    if data.format is DataFormat.DATASET:
        return _own(job, features, process, readers)
    ranks = {
        "rank": process.rank,
        "world_size": process.num_trainers,
        "batch_size": job.spec.model.samples_per_device,
    }

    def opened(
        path: str | None, *, percent: int, shuffle: bool, leave_out: str | None = None
    ) -> tuple[BatchMaker, SampleOrder, SampleSource]:
        source = open_source(
            data,
            tables,
            features,
            num_dense=job.spec.model.num_dense_features,
            seed=job.spec.sample_seed,
            root=root,
            spare=spare,
            path=path,
            leave_out=leave_out,
            sessions=drawn.synthetic_sessions,
        )
        order = SampleOrder(
            source.block_sizes,
            validation_percent=percent,
            seed=job.spec.sample_seed,
            shuffle=shuffle,
            max_validation=drawn.evaluation_samples,
            sessions=Sessions(source=source, run=drawn.session_run)
            if job.spec.has_sessions and isinstance(source, SessionSource)
            else None,
        )
        changes = job.spec.experimental.synthetic_drift or ()
        drifted = drifted_sources(changes, features, source) if isinstance(source, SyntheticSource) else ()
        return BatchMaker(source, order, features, **ranks, drifted=drifted), order, source

    percent = data.validation_percent if data.evaluation_path is None else 0
    maker, order, source = opened(None, percent=percent, shuffle=data.shuffle, leave_out=data.evaluation_path)
    if not order.num_training:
        raise DataError(
            "spec.data.validationPercent: every session is held out for evaluation; hint: lower it, or give samples of "
            "their own in spec.data.evaluationPath"
        )
    evaluate, held_out, evaluated = (
        (maker, order, source)
        if data.evaluation_path is None
        else opened(data.evaluation_path, percent=100, shuffle=False)
    )
    require_same_ids(source, evaluated)
    return TrainingData(
        train=maker,
        evaluate=evaluate.for_evaluation(num_readers=readers_of(job, process)),
        num_training=order.num_training,
        num_validation=held_out.num_validation,
        readers=readers,
        text_features=text_features(source),
        columns=DataColumns.of(data, features, num_dense=job.spec.model.num_dense_features, folder=spare),
    )


def _own(job: DLRMTrainingJob, features: Sequence[Feature], process: Process, readers: Readers) -> TrainingData:
    data, most = job.spec.data, job.spec.experimental.data.evaluation_samples
    assert data.dataset is not None, "the job was checked when it was read"
    dataset = OwnDataset(
        name=data.dataset,
        path=data.path,
        features=features,
        num_dense=job.spec.model.num_dense_features,
        rank=process.rank,
        world_size=process.num_trainers,
        batch_size=job.spec.model.samples_per_device,
        num_readers=readers.num_processes,
        seed=job.spec.sample_seed,
    )
    num_samples = data.num_samples or dataset.length(evaluation=False)
    if num_samples is None:
        raise DataError(
            f"spec.data.dataset: {data.dataset} has no __len__"
            f"; hint: give the samples of an epoch in spec.data.numSamples"
        )
    return TrainingData(
        train=dataset,
        evaluate=dataset,
        num_training=num_samples,
        num_validation=min(most, dataset.length(evaluation=True) or most) if data.validation_percent else 0,
        readers=readers,
        columns=DataColumns.of(data, features, num_dense=job.spec.model.num_dense_features),
    )
