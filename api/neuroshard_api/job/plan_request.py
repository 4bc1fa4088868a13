"""From a job to what its planner is asked: pure translations between documents."""

import json
from collections.abc import Iterator

from neuroshard_api.documents.batch_choice import BatchChoices
from neuroshard_api.documents.document import DocumentError, decoded, decompressed, told_as_problems
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.request import (
    Algorithm,
    Constraints,
    MemorySettings,
    Pipeline,
    PlanRequest,
    SearchSettings,
)
from neuroshard_api.documents.servers import untrained_servers
from neuroshard_api.documents.table_files import parse_table_set
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import HostMemory, Topology
from neuroshard_api.documents.trainable_names import is_trainable_name, why_not_trainable
from neuroshard_api.job.communication import NarrowTypes
from neuroshard_api.job.elastic import ElasticBatch
from neuroshard_api.job.feature_columns import require_feature_columns
from neuroshard_api.job.model import Architecture
from neuroshard_api.job.resource import size_bytes
from neuroshard_api.job.sizes import batch_sizes
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training import DataFormat, Deduplication, Precision
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded
from neuroshard_api.process import allocator
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_api.sharding.replication import ReplicationChoices


def plan_request(
    job: DLRMTrainingJob, *, tables: TableSet, topology: Topology, algorithm: Algorithm | None = None
) -> PlanRequest:
    """Return the request for the job's plan. ``algorithm`` None: the job's own; else its fallback.

    Raises:
        DocumentError: tables may be in host memory, and these devices have none, or a link to it that is not known; or
            a table has a name or an optimizer with which the job's trainer does not train it; or a fixed type on the
            wire does not go with the batch size or the devices; or a feature is another column of the job's data; or
            the job's trainer does not train its embedding servers.
    """
    spec = job.spec
    require_feature_columns(spec.model, spec.data, tables, where="job")
    _require_trainable_names(job, tables)
    _require_one_optimizer(job, tables)
    tables = with_known_repeats(job, tables)
    _require_trainable(spec.narrow_types, spec.model.samples_per_device, topology)
    found = spec_request(
        spec,
        tables=tables,
        topology=topology,
        algorithm=algorithm,
        deduplicated=groups_to_deduplicate(job, tables),
        remarks=(*_unmeasured_repeats(job, tables), *_other_precision(job, topology)),
        counts_dense=counts_dense(spec),
        has_expandable_segments=segments_grow(spec),
        limits=Constraints(excluded_sharding_types=(ShardingType.DATA_PARALLEL,) if spec.trainer.command else None),
    )
    found = found.model_copy(update={"refused_levers": tuple(_refused_levers(spec)) or None})
    problem = untrained_servers(found)
    if problem is not None:
        raise DocumentError("job", [found.in_its_names(problem)])
    return found


def _refused_levers(spec: Spec) -> Iterator[LeverName]:
    """Yield the levers that no plan of a job names; see the rules of variants in `training_job`."""
    if spec.variants is not None:
        yield from (LeverName.WIRE_TYPES, LeverName.DEVICE_GROUPS)
    elastic = spec.experimental.elastic
    if elastic is not None:  # the cluster decides on the nodes; the fields are of the most, this plan may be of fewer
        yield LeverName.NODES
        if elastic.batch is ElasticBatch.GLOBAL:
            yield LeverName.BATCH_SIZE


def spec_request(
    spec: Spec,
    *,
    tables: TableSet,
    topology: Topology,
    algorithm: Algorithm | None,
    deduplicated: tuple[str, ...] | None,
    remarks: tuple[str, ...],
    counts_dense: bool,
    has_expandable_segments: bool,
    limits: Constraints,
) -> PlanRequest:
    """Return the request for tables under the settings of a spec.

    Args:
        spec: its model, planner, training, and experimental settings say what is planned.
        tables: those that are planned.
        topology: the devices.
        algorithm: None: the spec's.
        deduplicated: duplication groups whose repeats may be left out. None: none. Empty: none could be.
        remarks: sentences that the plan repeats as warnings.
        counts_dense: whether the dense part is counted, so that choices for it mean something.
        has_expandable_segments: whether the trainer's allocator grows its segments.
        limits: further ones; those of the spec win.

    Raises:
        DocumentError: tables may be in host memory, and these devices have none, or a link to it that is not known; or
            the devices cannot train tables of such types, widths, or optimizers.
    """
    narrow, search = spec.narrow_types, spec.experimental.planner
    dense, host = search.dense_memory_per_device, spec.planner.host_memory_per_node
    groups = spec.planner.sharding_groups
    topology = topology if host is None else _with_host_memory(topology, size_bytes(host))
    with told_as_problems(PlanRequest, where="job"):
        return PlanRequest(
            tables=tables,
            topology=topology,
            batch_size_per_device=spec.model.samples_per_device,
            batch_choices=BatchChoices(sizes=batch_sizes(spec)) if spec.model.chooses_batch_size else None,
            optimizer=spec.model.embedding_optimizer.optimizer,
            deduplicate=deduplicated,
            joint_product_columns=_joint_product_columns(spec) if deduplicated else None,
            remarks=remarks or None,
            dense_choices=spec.dense_choices if counts_dense else None,
            replication=None
            if groups is None
            else ReplicationChoices(group_sizes=groups.sizes, sync_every_steps=search.sync_every_steps),
            communication=narrow.choices,
            wire=narrow.fixed,
            gradient_choices=narrow.gradient_choices if counts_dense else None,
            gradients=narrow.fixed_gradients,
            pipeline=Pipeline[spec.experimental.pipeline.name],
            memory=MemorySettings(
                dense_bytes=None if dense is None else size_bytes(dense),
                expandable_segments=has_expandable_segments,
            ),
            constraints=_limits(spec, limits),
            search=SearchSettings(seed=search.seed, work_budget=search.work_budget),
            algorithm=algorithm or spec.planner.algorithm.algorithm,
            servers=None if spec.experimental.embedding_servers is None else spec.experimental.embedding_servers.pool,
            settings_of="job",
        )


def _joint_product_columns(spec: Spec) -> int | None:
    """Return the rank of the cross layers, the first of which multiplies all features side by side."""
    return spec.model.cross.low_rank_dim if spec.model.architecture is Architecture.DCN_V2 else None


def _limits(spec: Spec, given: Constraints) -> Constraints:
    """Return the limits of a spec with others, over which its own win."""
    planner = spec.planner
    most, named = planner.max_memory_per_device, planner.sharding_types
    own = {
        "max_memory_bytes_per_device": None if most is None else size_bytes(most),
        "max_shard_width": spec.experimental.planner.max_shard_width,
        "sharding_types": None if named is None else tuple(each.sharding_type for each in named),
        "compute_kernels": None
        if planner.host_memory_per_node is None or given.compute_kernels is not None
        else tuple(ComputeKernel),
        "data_types": planner.data_types,
    }
    others = {name: getattr(given, name) for name in Constraints.model_fields}
    return Constraints(**others | {name: value for name, value in own.items() if value is not None})


def segments_grow(spec: Spec) -> bool:
    """Return whether the trainer's allocator grows its segments: NeuroShard's own does where nothing else is set."""
    given = allocator.has_expandable_segments({each.name: each.value for each in spec.trainer.env})
    return not spec.trainer.command if given is None else given


def _require_trainable(narrow: NarrowTypes, batch_size_per_device: int, topology: Topology) -> None:
    """Do nothing if the fixed types on the wire, if any, can be trained. Raises DocumentError."""
    if narrow.fixed is None:
        return
    problem = narrow.fixed.problem(batch_size_per_device=batch_size_per_device, on_cpu=topology.device.is_cpu)
    if problem is not None:
        raise DocumentError("job", [f"spec.experimental.communication.embeddings.{problem}"])


def _require_trainable_names(job: DLRMTrainingJob, tables: TableSet) -> None:
    """Do nothing if the job's trainer can have tables of these names. Raises DocumentError."""
    problems = [why_not_trainable(table.name) for table in tables.tables if not is_trainable_name(table.name)]
    if problems and not job.spec.trainer.command:
        raise DocumentError("job", problems)


def _require_one_optimizer(job: DLRMTrainingJob, tables: TableSet) -> None:
    """Do nothing if the job's trainer trains each table with its optimizer. Raises DocumentError."""
    wanted = job.spec.model.embedding_optimizer
    if job.spec.trainer.command:
        return
    for table in tables.tables:
        if table.optimizer not in {None, wanted.optimizer}:
            problem = (
                f"spec.model.embeddingOptimizer: is {wanted.value}, and table {table.name!r} has the optimizer "
                f"{table.optimizer}; this trainer has one for all tables: leave the tables' own out, "
                "or give a trainer of your own"
            )
            raise DocumentError("job", [problem])


def _with_host_memory(topology: Topology, num_bytes: int) -> Topology:
    """Return the devices with so much memory for tables on each node, over the usual link. Raises DocumentError."""
    usual = load_presets().get(topology.device.name)
    if usual is None:
        name = topology.device.name
        problem = (
            "its processes have all tables in host memory already"
            if topology.device.is_cpu
            else "its link to host memory is not known"
        )
        raise DocumentError(
            "job", [f"spec.planner.hostMemoryPerNode: the device is {name!r}, {problem}; hint: leave it out"]
        )
    memory = HostMemory(bytes_per_node=num_bytes, link=usual.host_link)
    return topology.model_copy(update={"host_memory": memory})


def with_known_repeats(job: DLRMTrainingJob, tables: TableSet) -> TableSet:
    """Return the tables with the duplication factors that the job's synthetic sessions have.

    A table is in the group of its features, if they are all in one; all others have no repeats in such samples, and
    none has where samples are read as they are stored, for there sessions take turns.
    """
    drawn = job.spec.experimental.data
    sessions = drawn.synthetic_sessions
    if sessions is None:
        return tables
    groups = {name: group for group in sessions.groups for name in group.features}
    known = []
    for table in tables.tables:
        own = [groups.get(name) for name in table.features]
        group = own[0] if all(each is own[0] for each in own) else None
        # Stored order interleaves the sessions.
        repeats = group is not None and not table.is_sequence and job.spec.data.shuffle
        factor = sessions.factor(group, run=drawn.session_run) if group is not None and repeats else None
        name = group.features[0] if group is not None and repeats else None
        known.append(table.model_copy(update={"duplication_group": name, "duplication_factor": factor}))
    return tables.model_copy(update={"tables": tuple(known), "session_run": drawn.session_run})


def groups_to_deduplicate(job: DLRMTrainingJob, tables: TableSet) -> tuple[str, ...] | None:
    """Return the duplication groups whose repeats the job's trainer may leave out. None: it is asked to leave out none.

    Empty where it could not: the trainer is another one or trains variants, or the job does not keep runs together that
    are as long as those at which the factors were measured.
    """
    spec, groups = job.spec, tables.duplication_groups
    if not groups:
        return None
    is_own = not spec.trainer.command and spec.variants is None
    if not is_own or not spec.has_sessions or tables.session_run != spec.experimental.data.session_run:
        return ()
    return groups if spec.data.deduplication is Deduplication.AUTO else None


def reads_sessions(job: DLRMTrainingJob) -> bool:
    """Return whether the job's trainer reads samples in sessions, and may leave out lists that repeat in them."""
    data = job.spec.data
    return data.session_column is not None and data.deduplication is Deduplication.AUTO and not job.spec.trainer.command


def _unmeasured_repeats(job: DLRMTrainingJob, tables: TableSet) -> tuple[str, ...]:
    """Return a sentence where sessions are read and it is not known how often their lists repeat."""
    data, run = job.spec.data, job.spec.experimental.data.session_run
    if not reads_sessions(job):
        return ()
    label = "" if data.label_column is None else f" --label {data.label_column}"
    path = data.path if data.format is DataFormat.PARQUET else "PARQUET"
    convert = "" if data.format is DataFormat.PARQUET else "write the log as Parquet, "
    order = f"--session {data.session_column} --time {data.time_column or 'COLUMN'} --session-run {run}"
    command = f"`neuroshard stats {path}{label} {order} --embedding-dim N --out tables.json`"
    if not tables.has_duplication_factors:
        found = "the tables have no duplication factors"
    elif tables.session_run != run:
        found = f"the duplication factors are of runs of {tables.session_run}, sessionRun is {run}"
    else:
        return ()
    problem = f"spec.data.sessionColumn: {found}, so that the plan is for batches with all repeated lists"
    return (f"{problem}; hint: {convert}measure them by {command}, or set spec.data.deduplication: Off",)


def _other_precision(job: DLRMTrainingJob, topology: Topology) -> tuple[str, ...]:
    """Return a sentence where a counted dense part runs in another precision than that of its price."""
    precision = job.spec.training.precision
    if topology.device.is_cpu or not counts_dense(job.spec) or precision is Precision.TF32:
        return ()
    factor = "about half the time" if precision is Precision.BF16 else "6 to 8 times as long"
    found = f"spec.training.precision: the dense part is priced in TF32, and its matrix products take {factor}"
    return (f"{found} in {precision}; the plan of the tables is the same",)


def counts_dense(spec: Spec) -> bool:
    """Return whether a job's dense part is counted: NeuroShard's own trainer builds it, and no size is given."""
    return not spec.trainer.command and spec.experimental.planner.dense_memory_per_device is None


def dense_signature(job: DLRMTrainingJob) -> dict[str, str]:
    """Return the settings of a job that decide its dense part, as JSON text by field path."""
    model, training = job.spec.model, job.spec.training
    settings: dict[str, object] = {
        "spec.model.architecture": model.architecture,
        "spec.model.numDenseFeatures": model.num_dense_features,
        "spec.model.denseArchLayerSizes": model.dense_arch_layer_sizes,
        "spec.model.overArchLayerSizes": model.over_arch_layer_sizes,
        "spec.training.denseOptimizer": training.dense_optimizer,
    }
    if model.architecture is Architecture.DCN_V2:
        settings["spec.model.crossNetwork"] = model.cross.model_dump()
    if model.architecture is Architecture.WUKONG:
        settings["spec.model.wukong"] = model.wukong_layers.model_dump()
    found = {field: json.dumps(value) for field, value in settings.items()}
    if not job.spec.variants:
        return found
    own = {name: dense_signature(each) for name, each in expanded(job).items()}
    return {**found, "spec.variants": json.dumps(own)}


def tables_of_file(name: str, content: bytes, *, where: str) -> TableSet:
    """Return the table set in a file, or in one key of a ConfigMap.

    Args:
        name: tells by its suffix how the content is written: .json, .yaml or .csv, with .gz behind it for gzip.
        content: the bytes.
        where: what errors call the file.

    Raises:
        DocumentError: with the field, or in a CSV the line and the column.
    """
    text = decoded(decompressed(name, content, where=where), where=where)
    return parse_table_set(text, name=name, where=where)
