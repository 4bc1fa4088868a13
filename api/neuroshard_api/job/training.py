"""How a DLRMTrainingJob trains: ``spec.data``, ``spec.training`` and ``spec.checkpoint``."""

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.job.communication import Communication
from neuroshard_api.job.dense import DenseParallelism
from neuroshard_api.job.resource import ATOMIC, INT32_MAX, Name, Part, PositiveDecimal, Rule
from neuroshard_api.sharding.session_repeats import SessionRuns

Column = Annotated[str, Field(min_length=1, max_length=128)]
DataPath = Annotated[str, Field(min_length=1, max_length=4096)]
RelativePath = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^/\x00][^\x00]*$")]


class DataFormat(StrEnum):
    """Where samples come from."""

    SYNTHETIC = "Synthetic"
    """Made up: Zipf-distributed lookups with a planted signal, so that the AUC can rise."""
    CRITEO_TSV = "CriteoTSV"
    CRITEO_BINARY = "CriteoBinary"
    CRITEO_MULTI_HOT = "CriteoMultiHot"
    PARQUET = "Parquet"
    CSV = "CSV"
    """Lines with a header."""
    NPZ = "NPZ"
    MOVIELENS_100K = "MovieLens100K"
    DATASET = "Dataset"
    """A torch IterableDataset of the user's own."""


NEEDS_NO_PATH = (DataFormat.SYNTHETIC, DataFormat.DATASET)
WITH_EVALUATION_PATH = (
    DataFormat.CRITEO_TSV,
    DataFormat.CRITEO_BINARY,
    DataFormat.CRITEO_MULTI_HOT,
    DataFormat.PARQUET,
    DataFormat.CSV,
    DataFormat.NPZ,
)
WITH_NAMED_COLUMNS = (DataFormat.PARQUET, DataFormat.CSV)


class VolumeClaim(Part):
    """A PersistentVolumeClaim of the job's namespace."""

    claim_name: Name
    """Name of the PersistentVolumeClaim."""


class SyntheticDrift(Part):
    """Other lookups of a feature from a training sample on; of several entries for it the newest counts alone."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.poolingFactorTimes) || has(self.zipfExponent)",
            message="set poolingFactorTimes, zipfExponent, or both",
            holds=lambda drift: drift.pooling_factor_times is not None or drift.zipf_exponent is not None,
        ),
    )

    at_sample: Annotated[int, Field(ge=0, le=2**53)]
    """Training samples of all ranks and epochs before the change: batches that begin there or later are drawn so."""
    feature: Annotated[str, Field(min_length=1, max_length=128)]
    """Name of the feature: the table's, or one of its featureNames."""
    pooling_factor_times: PositiveDecimal | None = None
    """Factor of the table's own lookups per sample. If unset: 1."""
    zipf_exponent: PositiveDecimal | None = None
    """Skew of the lookups, as of a table. If unset: the table's own."""


class SyntheticGroup(Part):
    """Features of synthetic samples whose lists change together."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!quantity(string(self.changeProbability)).isGreaterThan(quantity('1'))",
            message="changeProbability must be at most 1",
            holds=lambda group: Decimal(group.change_probability) <= 1,
        ),
    )

    features: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(min_length=1, max_length=512, json_schema_extra=ATOMIC),
    ]
    """Features of the model; each is in one group at most."""
    change_probability: PositiveDecimal
    """Chance that a sample has other lists than the sample before it in its session, at most 1. Fractions are written
    as text, such as '0.1'."""


SESSION_BLOCK_SAMPLES = 4096
"""Samples of a block of synthetic data, which holds whole sessions."""


class SyntheticSessions(Part):
    """How synthetic samples come in sessions."""

    samples_per_session: PositiveDecimal = 8
    """Mean samples of a session; their number is geometrically distributed. Sessions end with their block of 4,096."""
    concurrency: PositiveCount = 64
    """Sessions whose samples interleave in stored order."""
    groups: Annotated[tuple[SyntheticGroup, ...], Field(min_length=1, max_length=64, json_schema_extra=ATOMIC)]
    """Features whose lists repeat. Lists of all others are drawn for each sample."""

    def factor(self, group: SyntheticGroup, *, run: int) -> float:
        """Return expected samples over distinct ones of a group in shuffled runs of a length; 0 is whole sessions."""
        runs = SessionRuns(
            block_samples=SESSION_BLOCK_SAMPLES,
            concurrency=self.concurrency,
            opening_chance=1 / max(1.0, float(self.samples_per_session)),
            run=run,
        )
        return 1 / runs.distinct_share(float(group.change_probability))


class Deduplication(StrEnum):
    """Whether lists that repeat within a session are sent and looked up once."""

    AUTO = "Auto"
    """Where the samples come in sessions, the tables' duplication factors are known, and the plan costs less so."""
    OFF = "Off"


class Data(Part):
    """The samples that NeuroShard's own trainer reads; a trainer of your own may ignore it."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.format in ['Synthetic', 'Dataset'] || has(self.path)",
            message="path is needed for every format but Synthetic and Dataset",
            holds=lambda data: data.format in NEEDS_NO_PATH or data.path is not None,
        ),
        Rule(
            cel="self.format in ['Parquet', 'CSV'] || !has(self.denseColumns)",
            message="denseColumns is for the formats Parquet and CSV only",
            holds=lambda data: data.format in WITH_NAMED_COLUMNS or data.dense_columns is None,
        ),
        Rule(
            cel="self.format in ['Parquet', 'CSV'] || !has(self.missing)",
            message="missing is for the formats Parquet and CSV only",
            holds=lambda data: data.format in WITH_NAMED_COLUMNS or data.missing is None,
        ),
        Rule(
            cel="self.format in ['Parquet', 'CSV', 'NPZ'] || !has(self.labelColumn)",
            message="labelColumn is for the formats Parquet, CSV and NPZ only",
            holds=lambda data: data.format in {*WITH_NAMED_COLUMNS, DataFormat.NPZ} or data.label_column is None,
        ),
        Rule(
            cel="self.format in ['Synthetic', 'Dataset'] || !has(self.numSamples)",
            message="numSamples is for the formats Synthetic and Dataset only; limit real data by training.maxSteps",
            holds=lambda data: data.format in NEEDS_NO_PATH or data.num_samples is None,
        ),
        Rule(
            cel="(self.format == 'Dataset') == has(self.dataset)",
            message="dataset names the class of the format Dataset, and is for that format only",
            holds=lambda data: (data.format is DataFormat.DATASET) == (data.dataset is not None),
        ),
        Rule(
            cel="!has(self.evaluationPath) || !(self.format in ['Synthetic', 'MovieLens100K', 'Dataset'])",
            message="evaluationPath is for formats of files; Synthetic, MovieLens100K and Dataset have none",
            holds=lambda data: data.evaluation_path is None or data.format in WITH_EVALUATION_PATH,
        ),
        Rule(
            cel="self.format in ['Parquet', 'CSV'] || !has(self.sessionColumn)",
            message="sessionColumn is for the formats Parquet and CSV only",
            holds=lambda data: data.format in WITH_NAMED_COLUMNS or data.session_column is None,
        ),
        Rule(
            cel="has(self.sessionColumn) || !has(self.timeColumn)",
            message="timeColumn orders the samples of a session; it needs sessionColumn",
            holds=lambda data: data.session_column is not None or data.time_column is None,
        ),
        Rule(
            cel="has(self.sessionColumn) || !has(self.constantInSession)",
            message="constantInSession names features that are constant in a session; it needs sessionColumn",
            holds=lambda data: data.session_column is not None or data.constant_in_session is None,
        ),
    )

    format: DataFormat = DataFormat.SYNTHETIC
    """Synthetic makes samples up, from the tables' own statistics and with a planted signal; CriteoTSV reads the Criteo
    challenges' text files, also compressed; CriteoBinary and CriteoMultiHot read the arrays that torchrec and MLPerf
    make of them; Parquet reads columns by name, ids as integers or texts or lists of them; CSV reads lines with a
    header, also compressed; NPZ reads arrays by name; MovieLens100K reads that data set from a folder or from the wheel
    of the package recbole; Dataset iterates over your own class."""
    path: DataPath | None = None
    """File, folder, glob pattern or URL (such as s3://bucket/day_*) of the data. A relative path is below /data
    in a pod, and below the job file's folder with `neuroshard run`. Needed for every format but Synthetic and
    Dataset."""
    dataset: Annotated[str, Field(max_length=512, pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] | None = None
    """Dataset: class of the samples, as package.module:Class."""
    evaluation_path: DataPath | None = None
    """Data of the same format for evaluation, such as the last day; training leaves out what it names. If unset:
    validationPercent of the data is held out. Given: nothing is."""
    persistent_volume_claim: VolumeClaim | None = None
    """Volume that holds the data, mounted read-only at /data. If unset: the path is in the image, or podTemplate mounts
    it."""
    label_column: Column | None = None
    """Parquet, CSV, NPZ: column or array of the label, 0 or 1. No feature may be the label, the session, the time, or a
    dense column. If unset: label."""
    dense_columns: Annotated[tuple[Column, ...], Field(max_length=4096, json_schema_extra=ATOMIC)] | None = None
    """Parquet, CSV: columns of the dense features. If unset: dense_0, dense_1 and so on, numDenseFeatures of them."""
    missing: Missing | None = None
    """Parquet, CSV: value of a dense column where it is null, empty, or NaN. Zero: 0. Mean: the mean of its values in
    all rows of path, taken in a first pass and kept in data/dense-means.json of the run directory. Error: an error that
    names the row, for nulls of Parquet before training begins. If unset: Error, since a value that is filled in changes
    what the model learns. A null id looks nothing up in all cases."""
    num_samples: PositiveCount | None = None
    """Synthetic, Dataset: samples of one epoch, over all ranks. If unset: 1,000,000, or the length of the dataset."""
    validation_percent: Annotated[int, Field(ge=0, le=90)] = 10
    """Share of the samples that is held out for evaluation, in percent; 0 evaluates nothing."""
    shuffle: bool = True
    """Whether samples come in an order drawn from training.seed, another one each epoch."""
    session_column: Column | None = None
    """Parquet, CSV: column that is equal for the samples of one session, of integers or texts. Whole sessions are then
    held out for evaluation, and samples of a session stay together in runs. If unset: every sample is by itself."""
    time_column: Column | None = None
    """Parquet, CSV: column that orders the samples of a session, of integers or timestamps; in CSV all are as the first
    one. If unset: they are stored in order."""
    constant_in_session: (
        Annotated[tuple[Column, ...], Field(min_length=1, max_length=512, json_schema_extra=ATOMIC)] | None
    ) = None
    """Parquet, CSV: features whose lists are equal for all samples of a session. Training ends with an error where one
    changes within a session and a block that it reads; `neuroshard stats --constant` compares whole Parquet logs. If
    unset: lists may change."""
    deduplication: Deduplication = Deduplication.AUTO
    """Auto leaves repeated lists out of batches where samples come in sessions, the tables have duplication factors
    (`neuroshard stats --session --time`; `neuroshard run` measures them itself in Parquet files), and the planner
    expects a gain; Off never does. The factors of synthetic sessions follow from their parameters."""


class DataSettings(Part):
    """How samples are drawn, ordered, and read."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Seed of the order of samples, of those that are held out, and of synthetic samples. If unset: training.seed.
    Given: jobs with other initial weights train on the same samples in the same order."""
    evaluation_samples: PositiveCount = 1_048_576
    """Most samples of one evaluation; where there are more, they come from blocks at even distances."""
    reader_processes: Annotated[int, Field(ge=0, le=64)] | None = None
    """Processes of each rank that read, decode and collate ahead of training. 0: the training thread reads. If unset: 2
    where GPUs compute; on CPUs, where a rank computes on a core, its share of the cores that are left, at most 2."""
    session_run: Annotated[int, Field(ge=0, le=INT32_MAX)] = 8
    """Maximum consecutive samples of one session that shuffling keeps together. 0: whole sessions, which can cost
    accuracy. 1: samples are shuffled one by one."""
    synthetic_sessions: SyntheticSessions | None = None
    """Synthetic: sessions in which lists repeat. If unset: lists are drawn for each sample."""


class DenseOptimizer(StrEnum):
    """Optimizer of the dense part."""

    SGD = "SGD"
    ADAGRAD = "Adagrad"
    ADAM = "Adam"


class Precision(StrEnum):
    """Arithmetic of the dense part; weights, gradients and optimizer state are FP32 in all of them."""

    FP32 = "FP32"
    TF32 = "TF32"
    """Matrix products of FP32 rounded to 10 bits of mantissa."""
    BF16 = "BF16"
    """torch.autocast to BF16."""


class TrainPipeline(StrEnum):
    """What overlaps with a training step."""

    NONE = "None"
    SPARSE_DIST = "SparseDist"


class LearningRateSchedule(Part):
    """Factor of both learning rates by step."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="has(self.decayStartStep) == has(self.decaySteps)",
            message="decayStartStep and decaySteps need each other",
            holds=lambda schedule: (schedule.decay_start_step is None) == (schedule.decay_steps is None),
        ),
        Rule(
            cel="!has(self.decayStartStep) || self.decayStartStep >= self.warmupSteps",
            message="decayStartStep must not be before the end of the warm-up",
            holds=lambda schedule: (
                schedule.decay_start_step is None or schedule.decay_start_step >= schedule.warmup_steps
            ),
        ),
    )

    warmup_steps: Annotated[int, Field(ge=0, le=INT32_MAX)] = 0
    """Steps in which the factor rises linearly to 1. 0: no warm-up."""
    decay_start_step: PositiveCount | None = None
    """Step from which the factor falls by the square of the remaining share of decaySteps. If unset: no decay."""
    decay_steps: PositiveCount | None = None
    """Steps of the decay; after them the factor stays at its last value. If unset: no decay."""


class Training(Part):
    """How long and how NeuroShard's own trainer trains; a trainer of your own may ignore it."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.targetAuc) || quantity(string(self.targetAuc)).isLessThan(quantity('1'))",
            message="targetAuc must be below 1",
            holds=lambda training: training.target_auc is None or Decimal(training.target_auc) < 1,
        ),
    )

    epochs: Annotated[int, Field(ge=1, le=INT32_MAX)] = 1
    """Passes over the training samples."""
    max_steps: PositiveCount | None = None
    """Steps after which training ends even within an epoch. If unset: all epochs."""
    embedding_learning_rate: PositiveDecimal = "0.02"
    """Learning rate of the tables' optimizer."""
    dense_optimizer: DenseOptimizer = DenseOptimizer.ADAM
    """Optimizer of the dense part."""
    dense_learning_rate: PositiveDecimal = "0.001"
    """Learning rate of the dense part's optimizer."""
    learning_rate_schedule: LearningRateSchedule = LearningRateSchedule.model_construct()
    """Warm-up and decay of both learning rates."""
    gradient_clip_norm: PositiveDecimal | None = None
    """Maximum norm of the dense part's gradients in a step; larger ones are scaled down. The tables' gradients go into
    their fused optimizer unclipped. If unset: no clipping."""
    dense_parallelism: DenseParallelism = DenseParallelism.model_construct()
    """How the dense part is kept on the devices: replicated or sharded."""
    precision: Precision = Precision.TF32
    """Arithmetic of the dense part's matrix products: FP32; TF32, which is FP32 on devices without it, such as CPUs; or
    BF16. Lookups compute in the tables' own types."""
    communication: Communication = Communication.model_construct()
    """Narrow types for what travels between devices."""
    target_auc: PositiveDecimal | None = None
    """AUC at which training ends, at the first evaluation whose AUC less its error reaches it. If unset: training ends
    with its last step."""
    eval_every_steps: PositiveCount | None = None
    """Steps between evaluations on the held-out samples. If unset: at the end of each epoch."""
    log_every_steps: PositiveCount = 100
    """Steps between lines of the log, and between reports of measured step times, which are held next to the plan's
    prediction."""
    tensorboard: bool = False
    """Whether rank 0 writes the loss at each line of the log, and the metrics of each evaluation, as TensorBoard's
    events into tensorboard/ of the run directory. Needs the package tensorboard, which the images do not have."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of initial weights and, unless experimental.data.seed is set, of the samples and their order."""


DEFAULT_INTERVAL_SECONDS = 900
"""Between checkpoints on a volume: what a lost node costs at most, against the time that a checkpoint takes."""


CHECKPOINTS_PATH: Final = "/checkpoints"
"""Where a pod mounts the volume of the checkpoints."""
DATA_PATH: Final = "/data"
"""Where a pod mounts the volume of the data."""


class Checkpoint(Part):
    """Where and when the state of training is kept."""

    persistent_volume_claim: VolumeClaim | None = None
    """Volume that keeps checkpoints beyond a pod, mounted at /checkpoints; with several nodes it must allow
    ReadWriteMany. If unset: they die with the pod, and every restart begins from the start."""
    folder: RelativePath | None = None
    """Folder of the volume with this job's state, which your own trainer finds in NEUROSHARD_RUN_DIR; a job that
    resumes from another one's checkpoints names that one's folder. If unset: the job's name for NeuroShard's trainer,
    so that jobs may share a volume, and the whole volume for a trainer of your own. `neuroshard run` has one folder for
    each run."""
    every_steps: PositiveCount | None = None
    """Steps between checkpoints, besides everySeconds. If unset: steps do not matter. There is always one checkpoint at
    the end, and one when the workers are asked to stop."""
    every_seconds: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Longest time between checkpoints, in seconds: the training that a lost node can cost. 0: time does not matter. If
    unset: 900 where persistentVolumeClaim and not everySteps is set, else 0."""
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """Newest checkpoints that are kept; older ones are deleted. One more stays until the next checkpoint begins or the
    last evaluation has passed: the newest may turn out to have diverged."""

    @property
    def interval_seconds(self) -> int | None:
        """Longest time between checkpoints; None: time does not matter."""
        if self.every_seconds is None:
            is_kept = self.persistent_volume_claim is not None
            return DEFAULT_INTERVAL_SECONDS if is_kept and self.every_steps is None else None
        return self.every_seconds or None
