"""The options that describe what to plan, common to several commands, and the request they stand for."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from typer.models import ArgumentInfo

from neuroshard_cli.shared.choices import (
    ComputePeakChoice,
    DenseCheckpointingChoice,
    DenseGroupChoice,
    DensePolicyChoice,
    DenseSplittingChoice,
    OutputTypeChoice,
    PipelineChoice,
)
from neuroshard_cli.shared.module_option import DEFAULT_BATCHES, BatchesOption, ModuleOption
from neuroshard_cli.shared.sizes import parse_bytes

if TYPE_CHECKING:
    from neuroshard_api.documents.presets import DevicePreset
    from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.documents.topology import DeviceType, Topology
    from neuroshard_costs.bundle import CostBundle
    from neuroshard_torchrec import ModelTables

TABLE_SET_SUFFIXES = (".csv", ".json", ".yaml", ".yml")
BATCH_PLACEHOLDER = "{batch}"
"""In the path of a counted dense part: samples per device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """What is planned, on which devices, and within which limits."""

    tables: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLES", help="A table set (YAML, JSON, CSV), a job file, or a name of `neuroshard workloads`."
        ),
    ] = None
    module: ModuleOption = None
    batches: BatchesOption = DEFAULT_BATCHES
    devices: Annotated[int | None, typer.Option(min=1, help="Devices in all nodes.")] = None
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes they stand in. Default: as many as the device type usually fills.")
    ] = None
    device_type: Annotated[str | None, typer.Option(help="A device of `neuroshard devices`.")] = None
    topology: Annotated[
        Path | None, typer.Option(help="Devices described by a topology file, instead of the three options above.")
    ] = None
    bundle: Annotated[
        Path | None, typer.Option(help="Directory of cost models. Default: the bundled ones of the device type.")
    ] = None
    any_device: Annotated[
        bool, typer.Option("--any-device", help="Plan with cost models of another device; the plan warns of it.")
    ] = False
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=2**24, help="Samples per device and step. Default: the table set's, else 8192."),
    ] = None
    optimizer: Annotated[
        OptimizerChoice | None, typer.Option(help="Default: the table set's, else rowwise_adagrad.")
    ] = None
    output_data_type: Annotated[
        OutputTypeChoice, typer.Option(help="Type of pooled embeddings and their gradients.")
    ] = "FP32"
    wire_forward: Annotated[
        str | None,
        typer.Option(
            help="Types in which pooled embeddings may travel where that shortens the step, such as FP16,INT8, besides "
            "FP32. Default: none."
        ),
    ] = None
    wire_backward: Annotated[
        str | None, typer.Option(help="The same for their gradients, such as FP16. Default: none.")
    ] = None
    least_gain: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Percent of a step that such types must save. Default: 2, or the cost models' error if that is more.",
        ),
    ] = None
    gradient_types: Annotated[
        str | None,
        typer.Option(
            help="Types in which gradients of replicated units of --dense may travel where that shortens the step, "
            "such as BF16,PowerSGD, besides FP32. Default: none."
        ),
    ] = None
    power_sgd_rank: Annotated[
        int | None, typer.Option(min=1, max=64, help="PowerSGD: columns of the thin matrices. Default: 2.")
    ] = None
    keep_percent: Annotated[
        float | None, typer.Option(min=0, max=50, help="Threshold: percent of the gradients that are sent. Default: 5.")
    ] = None
    data_types: Annotated[
        str | None,
        typer.Option(
            help="Types that tables may be stored in where that fits or is faster, such as FP32,FP16; changes results. "
            "Default: each table's own."
        ),
    ] = None
    pipeline: Annotated[PipelineChoice, typer.Option(help="How the trainer overlaps its steps.")] = "sparse-dist"
    compute_peak: Annotated[
        ComputePeakChoice, typer.Option(help="Wait for the slowest of each pass, or of both joint.")
    ] = "separate"
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Let the plan leave out lists that repeat within sessions.")
    ] = False
    constraints: Annotated[Path | None, typer.Option(help="A constraints file.")] = None
    max_memory: Annotated[
        str | None, typer.Option(help="Most memory of a device, such as 70GiB. Default: all it has.")
    ] = None
    host_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of each node that tables may take, such as 1TiB, unless the constraints name kernels. "
            "Default: none."
        ),
    ] = None
    group_sizes: Annotated[
        str | None,
        typer.Option(
            help="Let groups of devices each hold all tables, by sizes such as 8,16, or auto: all sizes. Default: none."
        ),
    ] = None
    sync_every: Annotated[
        int, typer.Option(min=1, help="Steps between averages of the groups' tables, with --group-sizes.")
    ] = 1
    dense: Annotated[
        Path | None,
        typer.Option(
            help="The dense part as `python -m neuroshard_trainer.dense_profile` counted it; {batch} in the path is "
            "the batch size."
        ),
    ] = None
    dense_memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of the dense part on each device, if it was not counted. Default: --module's, else 0."
        ),
    ] = None
    dense_policy: Annotated[
        DensePolicyChoice, typer.Option(help="Whether units of --dense may be, or are, sharded over devices.")
    ] = "auto"
    dense_group: Annotated[
        DenseGroupChoice, typer.Option(help="Devices that share a unit: those of a node, or all.")
    ] = "auto"
    dense_checkpointing: Annotated[
        DenseCheckpointingChoice, typer.Option(help="Whether activations are computed again in the backward pass.")
    ] = "auto"
    dense_splitting: Annotated[
        DenseSplittingChoice,
        typer.Option(help="Whether zero3 gathers operators of a unit, such as its layers, one after the other."),
    ] = "auto"
    dense_units: Annotated[
        str | None,
        typer.Option(
            help="Units with a strategy of their own, such as interaction=zero3,over_arch=replicate. Default: none."
        ),
    ] = None
    reserve: Annotated[float, typer.Option(min=0.0, max=0.99, help="Share of a device's memory that is kept free.")] = (
        0.1
    )
    reserve_memory: Annotated[str, typer.Option(help="Memory of a device that is kept free besides.")] = "0"
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal plans.")] = 0
    work_budget: Annotated[
        int | None, typer.Option(min=1, help="Most evaluations of a device's cost. Default: grows with the tables.")
    ] = None
    shard_tolerance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the predicted cost given up for fewer shards; 0: none.")
    ] = 0.001

    def dense_path(self, batch_size: int) -> Path:
        """Return the file of the dense part that was counted for a number of samples per device."""
        return Path(str(self.dense).replace(BATCH_PLACEHOLDER, str(batch_size)))


def takes_request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameters of RequestOptions; it receives them as its one argument ``options``.

    The command's own arguments, which have no dashes, come before the table set.
    """
    names = [field.name for field in fields(RequestOptions)]
    shared = _parameters(RequestOptions, RequestOptions)
    own = [each for each in _parameters(command, command) if each.name != "options"]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
        options = RequestOptions(**{name: values.pop(name) for name in names})
        command(options=options, **values)

    is_argument = [isinstance(each.annotation.__metadata__[0], ArgumentInfo) for each in own]
    arguments = [each for each, first in zip(own, is_argument, strict=True) if first]
    parameters = [*arguments, *shared, *(each for each in own if each not in arguments)]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _parameters(signature_of: Callable[..., Any], hints_of: object) -> list[inspect.Parameter]:
    hints = get_type_hints(hints_of, include_extras=True)
    return [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(signature_of).parameters.values()
    ]


def read_tables(name_or_path: str) -> "TableSet":
    """Read a table set from a file, or a bundled workload by its name."""
    from neuroshard_api.documents.table_files import read_table_set
    from neuroshard_planner.workload_store import read_workload

    path = Path(name_or_path)
    is_file = path.suffix.lower() in TABLE_SET_SUFFIXES or len(path.parts) > 1 or path.is_file()
    return read_table_set(path) if is_file else read_workload(name_or_path)


def find_preset(device_type: str) -> "DevicePreset":
    """Return a known device type. Raises CommandError, listing their names."""
    from neuroshard_api.documents.presets import preset

    try:
        return preset(device_type)
    except ValueError as error:
        raise CommandError(f"--device-type: {error}") from error


def build_topology(options: RequestOptions) -> "Topology":
    """Return the devices that the options describe, in one of the two ways."""
    from neuroshard_api.documents.topology import Topology

    if options.topology is not None:
        if options.devices is not None or options.nodes is not None or options.device_type is not None:
            raise CommandError("--topology: already says what --devices, --nodes and --device-type say; hint: give one")
        if options.host_memory is not None:
            raise CommandError(
                "--topology: says itself what host memory there is (host_memory); hint: leave out --host-memory"
            )
        return Topology.read(options.topology)
    if options.devices is None or options.device_type is None:
        raise CommandError(
            "--devices and --device-type: both are needed, or --topology; hint: see `neuroshard devices`"
        )
    found = find_preset(options.device_type)
    nodes = options.nodes if options.nodes is not None else -(-options.devices // found.devices_per_node)
    per_node, rest = divmod(options.devices, nodes)
    if rest:
        raise CommandError(f"--devices: {options.devices} do not fill {nodes} equal nodes; hint: give another --nodes")
    memory = None if options.host_memory is None else parse_bytes(options.host_memory, option="--host-memory")
    return found.topology(num_nodes=nodes, devices_per_node=per_node, host_memory_bytes=memory)


def build_request(options: RequestOptions, algorithm: "Algorithm | str | None") -> "PlanRequest":
    """Return the request that the options stand for. Raises CommandError or DocumentError.

    Args:
        options: what is planned; tables of a job file come with all that the job says.
        algorithm: None: the job's, or NeuroShard's.
    """
    from neuroshard_api.documents.request import Algorithm
    from neuroshard_api.job.job_file import is_job_file, read_job_file

    from neuroshard_cli.shared.job_request import request_of_job

    if options.tables is not None and is_job_file(Path(options.tables)):
        return request_of_job(read_job_file(Path(options.tables)), options, algorithm)
    return _request_of_tables(options, algorithm or Algorithm.NEUROSHARD)


def _request_of_tables(options: RequestOptions, algorithm: "Algorithm | str") -> "PlanRequest":
    from neuroshard_api.documents.dense_profile import DenseProfile
    from neuroshard_api.documents.document import validated
    from neuroshard_api.documents.request import Constraints, PlanRequest
    from neuroshard_api.sharding.kinds import ComputeKernel

    if (options.tables is None) == (options.module is None):
        found = "neither" if options.tables is None else "both"
        raise CommandError(f"TABLES and --module: found {found}; hint: give one of them")
    if options.dense is not None and options.dense_memory is not None:
        raise CommandError(
            "--dense: excludes --dense-memory, which takes the place of the count; hint: give one of them"
        )
    constraints = Constraints() if options.constraints is None else Constraints.read(options.constraints)
    topology = build_topology(options)
    tables, constraints, dense_bytes, of_module = _model(options, constraints)
    limits = constraints.model_dump(mode="json", exclude_none=True)
    if options.max_memory is not None:
        limits["max_memory_bytes_per_device"] = parse_bytes(options.max_memory, option="--max-memory")
    if options.host_memory is not None:
        limits.setdefault("compute_kernels", [kernel.value for kernel in ComputeKernel])
    if options.data_types is not None:
        limits["data_types"] = _data_types(options)
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
        from neuroshard_cli.shared.module_tables import with_managed_collision

        request = with_managed_collision(request, of_module)
    if options.dense is None:
        return request
    counted = options.dense_path(request.batch_size_per_device)
    return request.with_dense(DenseProfile.read(counted), where=str(counted))


def _data_types(options: RequestOptions) -> list[str]:
    """Return the types that the option permits. Raises CommandError."""
    from neuroshard_api.documents.tables import DataType

    names = [name.strip().upper() for name in (options.data_types or "").split(",")]
    unknown = next((name for name in names if name not in list(DataType)), None)
    if unknown is not None:
        raise CommandError(f"--data-types: {unknown!r} is not a type of tables; hint: use FP32, FP16, or both")
    if options.module is not None:
        raise CommandError(
            "--data-types: the tables of --module have the types that the module gives them, which no plan changes"
            "; hint: set data_type of the module's EmbeddingBagConfig, or leave the option out"
        )
    return names


def _communication(options: RequestOptions) -> dict[str, object] | None:
    """Return the types that the options permit on the wire. None: none. Raises CommandError."""
    from neuroshard_api.documents.communication import WireType

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
    from neuroshard_api.documents.gradient_exchange import GradientType

    settings = (
        (GradientType.POWER_SGD, "--power-sgd-rank", "rank", options.power_sgd_rank),
        (GradientType.THRESHOLD, "--keep-percent", "keep_percent", options.keep_percent),
    )
    known = {each.lower(): each for each in GradientType}
    names = [] if options.gradient_types is None else [each.strip() for each in options.gradient_types.split(",")]
    unknown = next((name for name in names if name.lower() not in known), None)
    if unknown is not None:
        raise CommandError(
            f"--gradient-types: {unknown!r} is not a type of gradients; hint: use {', '.join(GradientType)}"
        )
    types = [known[name.lower()] for name in names]
    for kind, option, _, value in settings:
        if value is not None and kind not in types:
            raise CommandError(
                f"{option}: is for {kind} alone; hint: give --gradient-types {kind} too, or leave it out"
            )
    if not types:
        return None
    if options.dense is None:
        raise CommandError(
            "--gradient-types: are of a counted dense part"
            "; hint: count it with `python -m neuroshard_trainer.dense_profile JOB --out dense.json`, and give --dense"
        )
    given = {"least_gain_percent": options.least_gain, **{field: value for _, _, field, value in settings}}
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
    options: RequestOptions, constraints: "Constraints"
) -> "tuple[TableSet, Constraints, int | None, ModelTables | None]":
    """Return tables that the options name in one of the two ways, limits, and memory of the dense part, None: counted.

    Last come the tables as the module has them. None: they are not a module's. A module has what its sharders allow,
    its own optimizer, and its own dense part, where no option says otherwise.
    """
    dense_bytes = None if options.dense_memory is None else parse_bytes(options.dense_memory, option="--dense-memory")
    if options.tables is not None:
        return read_tables(options.tables), constraints, dense_bytes, None
    from neuroshard_cli.shared.module_tables import read_module, with_module_limits, without_optimizers

    assert options.module is not None
    given = read_module(options.module, max_batches=options.batches)
    tables = given.tables()
    table_set = tables.table_set
    if options.optimizer is not None:
        table_set = without_optimizers(table_set)
    elif tables.optimizer_problem:
        raise CommandError(tables.optimizer_problem)
    if dense_bytes is None and options.dense is None:
        dense_bytes = given.dense_bytes(tables)
    return table_set, with_module_limits(tables, constraints), dense_bytes, tables


def find_bundle(path: Path | None, device: "DeviceType", *, any_device: bool) -> "CostBundle":
    """Return the bundle of the directory, or the bundled one of the device.

    Raises:
        BundleError: it cannot be read, or it is of another device and ``any_device`` does not allow that.
    """
    from neuroshard_costs.bundle import bundled_bundle, load_bundle
    from neuroshard_costs.errors import BundleDeviceError

    if path is None:
        return bundled_bundle(device.name)
    bundle = load_bundle(path)
    problem = bundle.device_problem(device)
    if problem is not None and not any_device:
        raise BundleDeviceError(
            f"{path}: {problem}"
            f"; hint: give the cost models of the device, or `--any-device` to plan with these all the same"
        )
    return bundle
