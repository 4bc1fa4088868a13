"""From options to the request of a plan: the one translation, of the command and of Python alike."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.document import COMPRESSED_SUFFIX, read_data, validated
from neuroshard_api.documents.gradient_exchange import GradientType
from neuroshard_api.documents.plan import GivenPlan, any_plan
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest
from neuroshard_api.documents.table_files import SUFFIXES, read_table_set
from neuroshard_api.documents.tables import DataType, TableSet
from neuroshard_api.job.job_file import JobFile, is_job_file, read_job_file
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_planner.workload_store import read_workload

from neuroshard_dlrm.devices import build_topology
from neuroshard_dlrm.job_request import request_of_job
from neuroshard_dlrm.module_tables import (
    read_module,
    with_managed_collision,
    with_module_limits,
    without_optimizers,
)
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.sizes import parse_bytes

if TYPE_CHECKING:
    from neuroshard_torchrec import ModelTables


class Module(Protocol):
    """A TorchRec module with its batches (see neuroshard_torchrec.given_model)."""

    def tables(self) -> "ModelTables":
        """Return the module's tables."""

    def dense_bytes(self, tables: "ModelTables") -> int:
        """Return the memory of the module's other parameters."""


Source = TableSet | JobFile | PlanRequest | Module
"""What can be planned from."""


def read_source(name_or_path: str) -> TableSet | JobFile | PlanRequest:
    """Read a table set, a job, a request, or a plan for its request from a file; or a bundled workload by its name.

    Raises:
        DocumentError: the file cannot be read, or is none of these.
        RequestError: there is no such workload.
    """
    path = Path(name_or_path)
    plain = Path(path.name.removesuffix(COMPRESSED_SUFFIX))
    if not (plain.suffix.lower() in SUFFIXES or len(path.parts) > 1 or path.is_file()):
        return read_workload(name_or_path)
    if is_job_file(path):
        return read_job_file(path)
    if plain.suffix.lower() not in SUFFIXES or plain.suffix.lower() == ".csv":
        return read_table_set(path)
    return source_of(read_data(path), where=str(path))


def source_of(raw: object, *, where: str) -> TableSet | JobFile | PlanRequest:
    """Return plain data as the document that it says it is. Raises DocumentError."""
    if PlanRequest.is_named_by(raw):
        return PlanRequest.from_data(raw, where=where)
    if GivenPlan.is_named_by(raw):
        return any_plan(raw, where=where).request
    if isinstance(raw, dict) and "apiVersion" in raw:
        return JobFile(path=Path(where), job=DLRMTrainingJob.from_data(raw, where=where), document=raw)
    return TableSet.from_data(raw, where=where)


def build_request(options: RequestOptions, algorithm: Algorithm | str | None) -> PlanRequest:
    """Return the request that the options stand for. Raises CommandError or DocumentError.

    Args:
        options: what is planned; tables of a job file come with all that the job says.
        algorithm: None: that of the job or of the request, or NeuroShard's.
    """
    if options.tables is None and options.module is not None:
        return request_of(read_module(options.module, max_batches=options.batches), options, algorithm)
    if options.tables is None or options.module is not None:
        found = "neither" if options.tables is None else "both"
        raise CommandError(f"TABLES and --module: found {found}; hint: give one of them")
    return request_of(read_source(options.tables), options, algorithm)


def request_of(source: Source, options: RequestOptions, algorithm: Algorithm | str | None) -> PlanRequest:
    """Return the request for a source with these options, which name none. Raises CommandError or DocumentError."""
    if isinstance(source, PlanRequest):
        return _request_again(source, options, algorithm)
    if isinstance(source, JobFile):
        return request_of_job(source, options, algorithm)
    return _request_of_tables(source, options, algorithm or Algorithm.NEUROSHARD)


def require_no_options(options: RequestOptions, *, but: frozenset[str], where: str) -> None:
    """Do nothing if no option is given but these, since a document has all others. Raises CommandError."""
    other = next((name for name in options.given() if name not in but), None)
    if other is not None:
        what = "TABLES" if other == "tables" else f"--{other.replace('_', '-')}"
        raise CommandError(f"{what}: {where} already says what it answers; hint: leave it out")


def _request_again(given: PlanRequest, options: RequestOptions, algorithm: Algorithm | str | None) -> PlanRequest:
    """Return a request, at another batch size or for another algorithm where these are named. Raises CommandError."""
    require_no_options(
        options, but=frozenset({"tables", "bundle", "any_device", "batch_size"}), where=options.tables or "the request"
    )
    changes: dict[str, object] = {}
    if options.batch_size is not None:
        changes["batch_size_per_device"] = options.batch_size
    if algorithm is not None:
        changes["algorithm"] = Algorithm(algorithm)
    raw = given.model_dump(mode="json", exclude_none=True)
    return validated(PlanRequest, {**raw, **changes}, where="request") if changes else given


def _request_of_tables(source: TableSet | Module, options: RequestOptions, algorithm: Algorithm | str) -> PlanRequest:
    if options.dense is not None and options.dense_memory is not None:
        raise CommandError(
            "--dense: excludes --dense-memory, which takes the place of the count; hint: give one of them"
        )
    given = options.constraints or Constraints()
    constraints = Constraints.read(given) if isinstance(given, Path) else given
    topology = build_topology(options)
    tables, constraints, dense_bytes, of_module = _model(source, options, constraints)
    limits = constraints.model_dump(mode="json", exclude_none=True)
    if options.max_memory is not None:
        limits["max_memory_bytes_per_device"] = parse_bytes(options.max_memory, option="--max-memory")
    if options.host_memory is not None:
        limits.setdefault("compute_kernels", [kernel.value for kernel in ComputeKernel])
    if options.data_types is not None:
        limits["data_types"] = _data_types(options.data_types, of_module=of_module is not None)
    batch_size = options.batch_size
    if batch_size is None and tables.global_batch_size is not None:
        batch_size = -(-tables.global_batch_size // topology.num_devices)
    if options.deduplicate and not tables.duplication_groups:
        raise CommandError(
            "--deduplicate: no table has a duplication_group with a duplication_factor"
            "; hint: `neuroshard stats --session COLUMN --time COLUMN` measures them"
        )
    raw = {
        "schema_version": PlanRequest.schema_name,
        "tables": tables.model_dump(mode="json", exclude_none=True),
        "topology": topology.model_dump(mode="json"),
        "batch_size_per_device": batch_size,
        "optimizer": options.optimizer or tables.optimizer,
        "pipeline": options.pipeline,
        "compute_peak": options.compute_peak,
        "memory": {
            **({} if dense_bytes is None else {"dense_bytes": dense_bytes}),
            "reserve_fraction": options.reserve,
            "reserve_bytes": parse_bytes(options.reserve_memory, option="--reserve-memory"),
            "output_data_type": options.output_data_type,
        },
        "deduplicate": tables.duplication_groups if options.deduplicate else None,
        "communication": _communication(options),
        "gradient_choices": _gradient_choices(options),
        "dense_choices": _dense_choices(options),
        "replication": _replication(options),
        "constraints": limits,
        "search": {
            "seed": options.seed,
            "work_budget": options.work_budget,
            "shard_tolerance": options.shard_tolerance,
        },
        "algorithm": algorithm,
    }
    request = validated(PlanRequest, {key: value for key, value in raw.items() if value is not None}, where="request")
    if of_module is not None:
        request = with_managed_collision(request, of_module)
    if options.dense is None:
        return request
    counted = options.dense_path(request.batch_size_per_device)
    return request.with_dense(DenseProfile.read(counted), where=str(counted))


def _data_types(text: str, *, of_module: bool) -> list[str]:
    """Return the types that the option permits. Raises CommandError."""
    names = [name.strip().upper() for name in text.split(",")]
    unknown = next((name for name in names if name not in list(DataType)), None)
    if unknown is not None:
        raise CommandError(f"--data-types: {unknown!r} is not a type of tables; hint: use FP32, FP16, or both")
    if of_module:
        raise CommandError(
            "--data-types: the tables of --module have the types that the module gives them, which no plan changes"
            "; hint: set data_type of the module's EmbeddingBagConfig, or leave the option out"
        )
    return names


def _communication(options: RequestOptions) -> dict[str, object] | None:
    """Return the types that the options permit on the wire. None: none. Raises CommandError."""
    given = {"forward": options.wire_forward, "backward": options.wire_backward}
    if all(text is None for text in given.values()):
        if options.least_gain is not None and options.gradient_types is None:
            raise CommandError(
                "--least-gain: no types are permitted"
                "; hint: give --wire-forward, --wire-backward, or --gradient-types too, "
                "or leave it out"
            )
        return None
    chosen: dict[str, object] = {} if options.least_gain is None else {"least_gain_percent": options.least_gain}
    for direction, text in given.items():
        names = [] if text is None else [name.strip().upper() for name in text.split(",")]
        unknown = next((name for name in names if name not in list(WireType)), None)
        if unknown is not None:
            raise CommandError(
                f"--wire-{direction}: {unknown!r} is not a type on the wire; hint: use {', '.join(WireType)}"
            )
        chosen[direction] = names
    return chosen


def _gradient_choices(options: RequestOptions) -> dict[str, object] | None:
    """Return the types that the options permit for gradients of the dense part. None: none. Raises CommandError."""
    known = {each.lower(): each for each in GradientType}
    names = [] if options.gradient_types is None else [each.strip() for each in options.gradient_types.split(",")]
    unknown = next((name for name in names if name.lower() not in known), None)
    if unknown is not None:
        raise CommandError(
            f"--gradient-types: {unknown!r} is not a type of gradients; hint: use {', '.join(GradientType)}"
        )
    types = [known[name.lower()] for name in names]
    if options.keep_percent is not None and GradientType.THRESHOLD not in types:
        raise CommandError(
            "--keep-percent: is for Threshold alone; hint: give --gradient-types Threshold too, or leave it out"
        )
    if not types:
        return None
    if options.dense is None:
        raise CommandError(
            "--gradient-types: are of a counted dense part"
            "; hint: count it with `python -m neuroshard_trainer.dense_profile JOB --out dense.json`, and give --dense"
        )
    given = {"least_gain_percent": options.least_gain, "keep_percent": options.keep_percent}
    return {"types": types, **{field: value for field, value in given.items() if value is not None}}


def _dense_choices(options: RequestOptions) -> dict[str, object] | None:
    """Return the options' choices for the dense part. None: the defaults. Raises CommandError."""
    named = {
        "policy": options.dense_policy,
        "group": options.dense_group,
        "checkpointing": options.dense_checkpointing,
        "splitting": options.dense_splitting,
    }
    chosen: dict[str, object] = {name: value for name, value in named.items() if value != "auto"}
    if options.dense_units is not None:
        pairs = [each.strip().partition("=") for each in options.dense_units.split(",")]
        if not all(module and strategy for module, _, strategy in pairs):
            raise CommandError(
                f"--dense-units: {options.dense_units!r} is not a list of units; hint: write PATH=STRATEGY,..., where "
                "a strategy is replicate, zero2, or zero3"
            )
        chosen["units"] = [{"module": module, "strategy": strategy} for module, _, strategy in pairs]
    if chosen and options.dense is None:
        raise CommandError(
            "--dense-policy, --dense-group, --dense-checkpointing, --dense-splitting, --dense-units: are of a counted "
            "dense part"
            "; hint: count it with `python -m neuroshard_trainer.dense_profile JOB --out dense.json`, and give --dense"
        )
    return chosen or None


def _replication(options: RequestOptions) -> dict[str, object] | None:
    """Return the groups that the options permit. None: none. Raises CommandError."""
    if options.group_sizes is None:
        if options.sync_every != 1:
            raise CommandError(
                "--sync-every: there are no groups to average; hint: give --group-sizes too, or leave it out"
            )
        return None
    chosen: dict[str, object] = {"sync_every_steps": options.sync_every}
    if options.group_sizes == "auto":
        return chosen
    sizes = options.group_sizes.split(",")
    if not all(size.strip().isdecimal() for size in sizes):
        raise CommandError(
            f"--group-sizes: {options.group_sizes!r} is not a list of sizes; hint: write numbers such as 8,16, or auto"
        )
    return {**chosen, "group_sizes": [int(size) for size in sizes]}


def _model(
    source: TableSet | Module, options: RequestOptions, constraints: Constraints
) -> "tuple[TableSet, Constraints, int | None, ModelTables | None]":
    """Return the tables of a source, limits, and memory of the dense part, None: counted.

    Last come the tables as the module has them. None: they are not a module's. A module has what its sharders allow,
    its own optimizer, and its own dense part, where no option says otherwise.
    """
    dense_bytes = None if options.dense_memory is None else parse_bytes(options.dense_memory, option="--dense-memory")
    if isinstance(source, TableSet):
        return source, constraints, dense_bytes, None
    tables = source.tables()
    table_set = tables.table_set
    if options.optimizer is not None:
        table_set = without_optimizers(table_set)
    elif tables.optimizer_problem:
        raise CommandError(tables.optimizer_problem)
    if dense_bytes is None and options.dense is None:
        dense_bytes = source.dense_bytes(tables)
    return table_set, with_module_limits(tables, constraints), dense_bytes, tables
