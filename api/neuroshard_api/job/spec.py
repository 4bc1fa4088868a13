"""What is wanted of a `DLRMTrainingJob`: the fields of its spec, the rules between them, and what a change affects."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, ValidationError, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel

from neuroshard_api.documents.dense_layout import CheckpointingChoice, DenseChoices, DensePolicy
from neuroshard_api.documents.document import (
    FieldError,
)
from neuroshard_api.job.communication import CommunicationPolicy, NarrowTypes
from neuroshard_api.job.dense import ParallelismPolicy, dense_choices
from neuroshard_api.job.elastic import ElasticBatch, kept_batch
from neuroshard_api.job.experimental import Experimental
from neuroshard_api.job.feature_columns import COLUMN_RULES, ColumnProblem, job_column_problems
from neuroshard_api.job.model import AUTO, MAX_BATCH_SIZE, Model
from neuroshard_api.job.policies import FailureAction, FailurePolicy, RunPolicy
from neuroshard_api.job.preparation import Planner, PlanReference, Profiler, ProfilerPolicy, TableSharding
from neuroshard_api.job.replanning import Replanning
from neuroshard_api.job.resource import Checked, Part, Rule, Unique, Waived
from neuroshard_api.job.training import Checkpoint, Data, DataFormat, Deduplication, Training, TrainPipeline
from neuroshard_api.job.variants import MAX_VARIANTS, JobVariant
from neuroshard_api.job.workers import HAS_GPUS, PodTemplate, Trainer
from neuroshard_api.sharding.kernels import widest_shard
from neuroshard_api.sharding.placement_rules import CUT_BY_COLUMNS

GROUP = "training.neuroshard.dev"
OPERATOR = f"{GROUP}/operator"
"""Value of managedBy that this operator acts on."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Value of managedBy with which Kueue runs the job in another cluster."""


class LaunchPolicy(StrEnum):
    """What follows planning."""

    AUTO = "Auto"
    PLAN_ONLY = "PlanOnly"
    MANUAL = "Manual"


def _only_while_suspended(path: str, *, optional: bool = False) -> Rule:
    """Return the rule that a field changes only while the job is suspended.

    Kueue changes placement and resumes the job in one update, so the job's earlier state decides.
    """
    same = f"self.{path} == oldSelf.{path}"
    if optional:
        same = f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})"
    return Rule(cel=f"oldSelf.suspend || ({same})", message=f"{path} can be changed only while the job is suspended")


_MANAGERS = Checked(
    rules=(
        Rule(cel="self == oldSelf", message="managedBy cannot be changed"),
        Rule(
            cel=f"self in ['{OPERATOR}', '{MULTIKUEUE}']",
            message=f"managedBy must be {OPERATOR} or {MULTIKUEUE}",
            holds=lambda value: value in {OPERATOR, MULTIKUEUE},
        ),
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Affects:
    """The stages that a change of one field of the spec affects."""

    plan: bool = False
    """The plan: the job is planned again."""
    workers: bool = False
    """What the workers run: they are started again."""
    job_file: bool = False
    """The job file that pods read."""


AFFECTS: Final[Mapping[str, Affects]] = {
    "suspend": Affects(),
    "managed_by": Affects(),
    "launch_policy": Affects(),
    "model": Affects(plan=True, workers=True, job_file=True),
    "variants": Affects(plan=True, workers=True, job_file=True),
    "profiler": Affects(plan=True, job_file=True),
    "planner": Affects(plan=True, job_file=True),
    "plan_ref": Affects(plan=True),
    "trainer": Affects(plan=True, workers=True, job_file=True),
    "pod_template": Affects(),
    "data": Affects(workers=True, job_file=True),
    "training": Affects(workers=True, job_file=True),
    "checkpoint": Affects(workers=True, job_file=True),
    "failure_policy": Affects(),
    "run_policy": Affects(),
    "replanning": Affects(),
    "experimental": Affects(plan=True, workers=True, job_file=True),
}
"""Every field of the spec. Those that change the plan or the workers can be changed only while the job is suspended; of
the others a change takes effect at the next decision, or when pods next start."""


_WIDEST = widest_shard("cuda", has_pooling=False)
_CUTS_BY_COLUMNS = [each.value for each in TableSharding if each.sharding_type in CUT_BY_COLUMNS]
_WIDTH_RULES = (
    Rule(
        cel=f"!has(self.experimental.planner.maxShardWidth) || self.experimental.planner.maxShardWidth <= {_WIDEST} || "
        f"!{HAS_GPUS}",
        message=f"experimental.planner.maxShardWidth: FBGEMM's CUDA kernels take at most {_WIDEST:,} columns"
        "; hint: lower it",
    ),
    Rule(
        cel=f"!has(self.planner.shardingTypes) || self.planner.shardingTypes.exists(t, t in {_CUTS_BY_COLUMNS}) || "
        f"!has(self.model.embeddingTables) || self.model.embeddingTables.all(t, t.embeddingDim <= {_WIDEST}) || "
        f"!{HAS_GPUS}",
        message=f"model.embeddingTables: FBGEMM's CUDA kernels take at most {_WIDEST:,} columns, and no type of "
        "planner.shardingTypes cuts by columns; hint: add ColumnWise there",
    ),
)
"""The API server's part of `Spec._kernel_problems`."""


def _where(
    absent: str, cel: str, *, message: str, is_absent: Callable[["Spec"], bool], holds: Callable[["Spec"], bool]
) -> Rule:
    """Return a rule for jobs with a field: `absent` is the expression, and `is_absent` the test, of those without."""
    return Rule(cel=f"{absent} || {cel}", message=message, holds=lambda spec: is_absent(spec) or holds(spec))


_ELASTIC_RULES = (
    Rule(
        cel="!has(self.experimental.elastic) || self.experimental.elastic.minNodes <= self.trainer.numNodes",
        message="experimental.elastic.minNodes must not be more than trainer.numNodes, which is the maximum",
        holds=lambda spec: (
            spec.experimental.elastic is None or spec.experimental.elastic.min_nodes <= spec.trainer.num_nodes
        ),
    ),
    Rule(
        cel="!has(self.experimental.elastic) || self.experimental.elastic.batch == 'PerDevice' || "
        f"self.model.batchSizePerDevice == '{AUTO}' || "
        "(self.model.batchSizePerDevice * self.trainer.numNodes) % self.experimental.elastic.minNodes == 0 && "
        "self.model.batchSizePerDevice * self.trainer.numNodes <= "
        f"{MAX_BATCH_SIZE} * self.experimental.elastic.minNodes",
        message="experimental.elastic keeps the samples of a step, which are model.batchSizePerDevice on "
        "trainer.numNodes nodes, and minNodes does not divide them, or leaves a device more than "
        f"{MAX_BATCH_SIZE:,}; hint: another minNodes, or batch PerDevice",
        holds=lambda spec: (
            spec.experimental.elastic is None
            or spec.experimental.elastic.batch is ElasticBatch.PER_DEVICE
            or spec.model.chooses_batch_size
            or kept_batch(spec.model.samples_per_device, spec.trainer.num_nodes, spec.experimental.elastic.min_nodes)
            is not None
        ),
    ),
    Rule(
        cel="!has(self.experimental.elastic) || !has(self.planRef)",
        message="experimental.elastic plans for each number of nodes, and the plan of planRef is for one"
        "; hint: remove one of them",
        holds=lambda spec: spec.experimental.elastic is None or spec.plan_ref is None,
    ),
)


def _with_servers(cel: str, holds: Callable[["Spec"], bool], message: str) -> Rule:
    return _where(
        "!has(self.experimental.embeddingServers)",
        cel,
        message=message,
        is_absent=lambda spec: spec.experimental.embedding_servers is None,
        holds=holds,
    )


_SERVER_RULES = (
    _with_servers(
        "!has(self.trainer.command) || self.trainer.command.size() == 0",
        lambda spec: not spec.trainer.command,
        "experimental.embeddingServers need NeuroShard's own trainer; hint: leave trainer.command out",
    ),
    _with_servers(
        "!self.experimental.checkpoint.inBackground",
        lambda spec: not spec.experimental.checkpoint.in_background,
        "experimental.checkpoint.inBackground copies the whole state, for which experimental.embeddingServers have no "
        "memory; hint: leave one of them out",
    ),
    _with_servers(
        "self.experimental.pipeline == 'None'",
        lambda spec: spec.experimental.pipeline is TrainPipeline.NONE,
        "experimental.embeddingServers answer one batch after the other; hint: set experimental.pipeline to None",
    ),
    _with_servers(
        "!has(self.experimental.elastic)",
        lambda spec: spec.experimental.elastic is None,
        "experimental.embeddingServers serve one number of nodes, and experimental.elastic changes it; hint: leave one "
        "of them out",
    ),
)


def _without_variants(cel: str, holds: Callable[["Spec"], bool], problem: str) -> Rule:
    return _where(
        "!has(self.variants)",
        cel,
        message=f"variants: {problem}; hint: remove one of them, or train the variants as jobs (neuroshard sweep)",
        is_absent=lambda spec: spec.variants is None,
        holds=holds,
    )


_VARIANT_RULES = (
    _without_variants(
        "!has(self.trainer.command)",
        lambda spec: not spec.trainer.command,
        "NeuroShard's trainer trains them, and trainer.command brings another one",
    ),
    _without_variants(
        "!has(self.experimental.embeddingServers)",
        lambda spec: spec.experimental.embedding_servers is None,
        "their tables are on the devices of all, not on experimental.embeddingServers",
    ),
    _without_variants(
        "!has(self.planner.shardingGroups)",
        lambda spec: spec.planner.sharding_groups is None,
        "they train as one model on all devices, not in the groups of planner.shardingGroups",
    ),
    _without_variants(
        "self.training.communication.policy == 'Exact'",
        lambda spec: spec.training.communication.policy is CommunicationPolicy.EXACT,
        "the guard of narrow types watches one model, so that training.communication.policy must be Exact",
    ),
    _without_variants(
        "self.training.denseParallelism.policy != 'Shard' && !has(self.experimental.denseParallelism.units)",
        lambda spec: (
            spec.training.dense_parallelism.policy is not ParallelismPolicy.SHARD
            and spec.experimental.dense_parallelism == type(spec.experimental.dense_parallelism)()
        ),
        "their dense parts are replicated, and training.denseParallelism or experimental.denseParallelism shards them",
    ),
    _without_variants(
        "self.data.deduplication == 'Off' || !(has(self.data.sessionColumn) || "
        "has(self.experimental.data.syntheticSessions))",
        lambda spec: spec.data.deduplication is Deduplication.OFF or not spec.has_sessions,
        "lists that repeat in sessions are not left out of their batches; set data.deduplication: Off",
    ),
    _without_variants(
        "!has(self.model.embeddingTablesFrom) || !self.variants.exists(v, has(v.model.embeddingDim))",
        lambda spec: (
            spec.model.embedding_tables is not None
            or all(each.model.embedding_dim is None for each in spec.variants or ())
        ),
        "model.embeddingDim needs the tables in model.embeddingTables, and they are in embeddingTablesFrom",
    ),
)


def _with_own_batch(cel: str, holds: Callable[["Spec"], bool], problem: str) -> Rule:
    return _where(
        f"self.model.batchSizePerDevice != '{AUTO}'",
        cel,
        message=f"model.batchSizePerDevice {AUTO}: {problem}; hint: give a number, such as 8192",
        is_absent=lambda spec: not spec.model.chooses_batch_size,
        holds=holds,
    )


_BATCH_RULES = (
    _with_own_batch(
        "!has(self.trainer.command) || self.trainer.command.size() == 0",
        lambda spec: not spec.trainer.command,
        "NeuroShard's trainer takes the plan's batch and learning rates, and trainer.command brings another one",
    ),
    _with_own_batch(
        "!has(self.experimental.planner.denseMemoryPerDevice)",
        lambda spec: spec.experimental.planner.dense_memory_per_device is None,
        "the dense part is counted for each batch, and experimental.planner.denseMemoryPerDevice takes the count's "
        "place",
    ),
    _with_own_batch(
        "!has(self.experimental.elastic)",
        lambda spec: spec.experimental.elastic is None,
        "experimental.elastic keeps the batch of the job over its numbers of nodes",
    ),
    _with_own_batch(
        "!has(self.experimental.embeddingServers)",
        lambda spec: spec.experimental.embedding_servers is None,
        "the share of tables on experimental.embeddingServers is chosen for one batch",
    ),
    _with_own_batch(
        "!has(self.variants)",
        lambda spec: spec.variants is None,
        "variants train on the same batches, each with learning rates for a known one",
    ),
)


class Spec(Part):
    """What is wanted."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="!has(self.planRef) || self.launchPolicy != 'PlanOnly'",
            message="launchPolicy PlanOnly makes no plan where planRef brings one; hint: remove one of them",
            holds=lambda spec: spec.plan_ref is None or spec.launch_policy is not LaunchPolicy.PLAN_ONLY,
        ),
        Rule(
            cel="!has(self.planRef) || !has(self.failurePolicy.rules) || "
            "!self.failurePolicy.rules.exists(rule, rule.action == 'ReplanAndRestart')",
            message="failurePolicy.rules: ReplanAndRestart makes no plan where planRef brings one"
            "; hint: remove one of them",
            holds=lambda spec: (
                spec.plan_ref is None
                or all(rule.action is not FailureAction.REPLAN_AND_RESTART for rule in spec.failure_policy.rules)
            ),
        ),
        Rule(
            cel="self.training.denseParallelism.policy != 'Shard' || "
            "!has(self.experimental.planner.denseMemoryPerDevice)",
            message="training.denseParallelism.policy Shard needs the counted dense part, and "
            "experimental.planner.denseMemoryPerDevice takes its place; hint: remove one of them",
            holds=lambda spec: (
                spec.training.dense_parallelism.policy is not ParallelismPolicy.SHARD
                or spec.experimental.planner.dense_memory_per_device is None
            ),
        ),
        Rule(
            cel="self.training.communication.policy != 'Fixed' || "
            "(self.experimental.communication.dense.size() == 1 && "
            "self.experimental.communication.embeddings.forward.size() == 1 && "
            "self.experimental.communication.embeddings.backward.size() == 1)",
            message="training.communication.policy Fixed takes exactly one type in each of embeddings.forward, "
            "embeddings.backward, and dense of experimental.communication; hint: name one in each, or let policy Auto "
            "choose",
            holds=lambda spec: (
                spec.narrow_types.policy is not CommunicationPolicy.FIXED
                or all(
                    len(types) == 1
                    for types in (
                        spec.experimental.communication.embeddings.forward,
                        spec.experimental.communication.embeddings.backward,
                        spec.experimental.communication.dense,
                    )
                )
            ),
        ),
        Rule(
            cel="!has(self.profiler.budgetSeconds) || "
            "self.profiler.budgetSeconds < self.experimental.profiler.timeoutSeconds",
            message="profiler.budgetSeconds must be less than experimental.profiler.timeoutSeconds, which also covers "
            "the start and the fit; hint: lower the one, or raise the other",
            holds=lambda spec: (
                spec.profiler.budget_seconds is None
                or spec.profiler.budget_seconds < spec.experimental.profiler.timeout_seconds
            ),
        ),
        Rule(
            cel="self.data.format == 'Synthetic' || !has(self.experimental.syntheticDrift)",
            message="experimental.syntheticDrift is for data of the format Synthetic only",
            holds=lambda spec: spec.data.format is DataFormat.SYNTHETIC or spec.experimental.synthetic_drift is None,
        ),
        Rule(
            cel="self.data.format == 'Synthetic' || !has(self.experimental.data.syntheticSessions)",
            message="experimental.data.syntheticSessions is for data of the format Synthetic only",
            holds=lambda spec: (
                spec.data.format is DataFormat.SYNTHETIC or spec.experimental.data.synthetic_sessions is None
            ),
        ),
        Rule(
            cel="!self.experimental.profiler.correctBySteps || "
            "(self.profiler.policy == 'IfNotPresent' && !has(self.profiler.costModelRef))",
            message="experimental.profiler.correctBySteps is for profiles that jobs share: it needs profiler.policy "
            "IfNotPresent and no profiler.costModelRef",
            holds=lambda spec: (
                not spec.experimental.profiler.correct_by_steps
                or (spec.profiler.policy is ProfilerPolicy.IF_NOT_PRESENT and spec.profiler.cost_model_ref is None)
            ),
        ),
        *COLUMN_RULES,
        *_WIDTH_RULES,
        *_VARIANT_RULES,
        *_ELASTIC_RULES,
        *_SERVER_RULES,
        *_BATCH_RULES,
        *(
            _only_while_suspended(to_camel(name), optional=name in {"plan_ref", "variants"})
            for name, affected in AFFECTS.items()
            if affected.plan or affected.workers
        ),
    )

    suspend: bool = False
    """Whether the job rests: no pods run, profile, plan and checkpoints are kept. Kueue sets it."""
    managed_by: Annotated[str, Field(max_length=63), _MANAGERS] = OPERATOR
    """Who acts on the job: this operator, or kueue.x-k8s.io/multikueue. With the latter this operator leaves the job
    alone and writes no status: it runs only where Kueue's MultiKueue handles this kind. Cannot be changed."""
    launch_policy: LaunchPolicy = LaunchPolicy.AUTO
    """What follows planning: Auto trains, PlanOnly ends the job, Manual waits until the annotation
    training.neuroshard.dev/approved-plan of the job names the plan's ConfigMap, as neuroshard approve has it do."""
    model: Model
    """The model: its embedding tables, which are planned, and its dense part."""
    variants: (
        Annotated[tuple[JobVariant, ...], Field(min_length=2, max_length=MAX_VARIANTS), Unique(key="name")] | None
    ) = None
    """Variants of the model that one trainer trains together, each with the numbers that it would have alone: on the
    same samples, batches, and devices. Pays where there are more variants than devices; otherwise `neuroshard sweep`
    gives each variant devices of its own. If unset: the model alone."""
    profiler: Profiler = Profiler.model_construct()
    """How the device and its links are measured."""
    planner: Planner = Planner.model_construct()
    """How the plan is searched."""
    plan_ref: PlanReference | None = None
    """A plan of your own: profiling and planning are skipped; the plan must be for this model and this world size."""
    trainer: Trainer = Trainer.model_construct()
    """The workers."""
    pod_template: PodTemplate = PodTemplate.model_construct()
    """Fields that the pods of the workers have in addition to the operator's. A change takes effect when the workers
    next
    start."""
    data: Data = Data.model_construct()
    """The samples that NeuroShard's own trainer reads."""
    training: Training = Training.model_construct()
    """How NeuroShard's own trainer trains."""
    checkpoint: Checkpoint = Checkpoint.model_construct()
    """Where and when the state of training is kept."""
    failure_policy: FailurePolicy = FailurePolicy.model_construct()
    """When failed workers are started again."""
    run_policy: RunPolicy = RunPolicy.model_construct()
    """Deadlines, and what happens when the job has ended."""
    replanning: Replanning = Replanning.model_construct()
    """What the job does about inputs and nodes that changed since its plan was made. A change takes effect at the next
    decision."""
    experimental: Experimental = Experimental.model_construct()
    """Settings that few jobs need, and that may change or go with any release. Each is off, or at the value that the
    product has for it, unless it is set."""

    @property
    def narrow_types(self) -> NarrowTypes:
        """What travels in narrow types."""
        return NarrowTypes(policy=self.training.communication.policy, settings=self.experimental.communication)

    @property
    def has_sessions(self) -> bool:
        """Whether the samples come in sessions."""
        return self.data.session_column is not None or self.experimental.data.synthetic_sessions is not None

    @property
    def sample_seed(self) -> int:
        """Seed of the samples and their order."""
        own = self.experimental.data.seed
        return self.training.seed if own is None else own

    @property
    def dense_choices(self) -> DenseChoices | None:
        """What a plan may choose from for the dense part. None: all defaults."""
        if self.variants:
            return DenseChoices(policy=DensePolicy.REPLICATE, checkpointing=CheckpointingChoice.NEVER)
        return dense_choices(self.training.dense_parallelism, self.experimental.dense_parallelism)

    @model_validator(mode="after")
    def _is_consistent(self, info: ValidationInfo) -> Self:
        problems = [
            *job_column_problems(self.model, self.data),
            *self._kernel_problems(),
            *self._variant_problems(),
        ]
        if problems and isinstance(info.context, Waived):
            info.context.problems.extend(f"spec.{problem}" for problem in problems)
        elif problems:
            raise FieldError(problems[0].path, problems[0].text)
        return self

    def _kernel_problems(self) -> Iterator[ColumnProblem]:
        """Yield widths that the kernels of the workers' GPUs never take; what they are is known before any plan."""
        most = _WIDEST
        if most is None or not self.trainer.num_gpus_per_node:
            return
        widest = self.experimental.planner.max_shard_width
        if widest is not None and widest > most:
            text = f"is {widest:,}, and FBGEMM's CUDA kernels take at most {most:,} columns; hint: lower it"
            yield ColumnProblem(path="experimental.planner.maxShardWidth", text=text)
        types = self.planner.sharding_types
        if types is None or any(each.sharding_type in CUT_BY_COLUMNS for each in types):
            return
        for index, table in enumerate(self.model.embedding_tables or ()):
            if table.embedding_dim > most:
                text = (
                    f"is {table.embedding_dim:,}, FBGEMM's CUDA kernels take at most {most:,} columns, and no type of "
                    "spec.planner.shardingTypes cuts by columns; hint: add ColumnWise there"
                )
                yield ColumnProblem(path=f"model.embeddingTables[{index}].embeddingDim", text=text)

    def _variant_problems(self) -> Iterator[ColumnProblem]:
        """Yield variants that are no model, such as one with the size of another architecture."""
        for index, each in enumerate(self.variants or ()):
            try:
                each.of_model(self.model)
            except ValidationError as error:
                text = error.errors()[0]["msg"].removeprefix("Value error, ")
                yield ColumnProblem(path=f"variants[{index}].model", text=f"{text}; hint: as in spec.model")
