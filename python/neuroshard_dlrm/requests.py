"""From a source and options to the request of a plan, by the job's own translation: for the command and Python alike.

A job file is planned as the operator plans it, with its dense part where that is asked for. A table set or a module
becomes a job of defaults, whose trainer is not known, so that ``--set`` has the same paths for each of them.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from neuroshard_api.documents.batch_choice import read_dense
from neuroshard_api.documents.dense_profile import DenseMatrices, DenseProfile
from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, read_data, validated
from neuroshard_api.documents.foreign_tables import table_set_of_data
from neuroshard_api.documents.kinds import is_resource
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.documents.plan import GivenPlan, any_plan
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest
from neuroshard_api.documents.table_files import SUFFIXES, read_table_set
from neuroshard_api.documents.tables import Optimizer, TableSet
from neuroshard_api.job.job_file import JobFile, is_job_file, read_job_file
from neuroshard_api.job.model import EmbeddingOptimizer
from neuroshard_api.job.plan_request import counts_dense, plan_request, spec_request
from neuroshard_api.job.settings import Settings, with_settings
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training import Deduplication
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob, JobManifest
from neuroshard_api.job.variants import with_variants
from neuroshard_api.process.collector import uncollected_imports
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_api.process.missing_package import install_hint
from neuroshard_planner.workload_store import read_workload, workload_names

from neuroshard_dlrm.devices import build_topology, described_devices, find_preset
from neuroshard_dlrm.module_tables import read_module, with_managed_collision, with_module_limits, without_optimizers
from neuroshard_dlrm.options import DEFAULT_BATCHES, RequestOptions, names_function
from neuroshard_dlrm.servers import with_server_pool

if TYPE_CHECKING:
    from neuroshard_torchrec import ModelTables


class DenseCounter(Protocol):
    """`neuroshard_trainer.dense_profile.dense_profiles`."""

    def __call__(
        self, job: DLRMTrainingJob, tables: TableSet, sizes: Sequence[int], *, multi_tensor: bool
    ) -> tuple[DenseProfile, ...]:
        """Count the dense part of a job at several batch sizes."""


class Module(Protocol):
    """A TorchRec module with its batches (see neuroshard_torchrec.given_model)."""

    def tables(self) -> "ModelTables":
        """Return the module's tables."""

    def dense_bytes(self, tables: "ModelTables") -> int:
        """Return the memory of the module's other parameters."""

    def dense_matrices(self, tables: "ModelTables") -> DenseMatrices | None:
        """Return their weight matrices. None: none are known."""


Source = TableSet | JobFile | PlanRequest | Module
"""What can be planned from."""
DocumentSource = TableSet | JobFile | PlanRequest

_BATCH_SIZE = "spec.model.batchSizePerDevice"
_OPTIMIZER = "spec.model.embeddingOptimizer"
_DENSE_MEMORY = "spec.experimental.planner.denseMemoryPerDevice"
_OF_DENSE = (
    "spec.training.denseParallelism",
    "spec.experimental.denseParallelism",
    "spec.experimental.communication.dense",
)
_DATA_TYPES = "spec.planner.dataTypes"
_PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Label of nodes with the product name of their GPUs."""


def read_source(name: str | None) -> Source:
    """Read the source that a word of the command line names.

    It is a file with a table set, a job, a request, or a plan for its request; a TorchRec module, as the function that
    makes it; or a bundled workload.

    Raises:
        CommandError: there is no word.
        DocumentError: the file cannot be read, or is none of these.
        RequestError: there is no such workload.
        DropInError: there is no such function, or it returns something else.
        MissingPackageError: it names a function, and TorchRec is not installed.
    """
    if name is None:
        raise CommandError(
            "TABLES: is missing; hint: give a table set, a job, request, or plan file, package.module:function, or a "
            "name of `neuroshard workloads`"
        )
    if names_function(name):
        return read_module(name, max_batches=DEFAULT_BATCHES)
    return read_document(name)


def read_document(name_or_path: str) -> DocumentSource:
    """Read a source as `read_source` does, but for modules."""
    path = Path(name_or_path)
    plain = Path(path.name.removesuffix(COMPRESSED_SUFFIX))
    is_workload = name_or_path in workload_names() and not path.is_file()
    if is_workload or not (plain.suffix or "/" in name_or_path or (name_or_path and path.exists())):
        return read_workload(name_or_path)
    if path.is_dir():
        raise DocumentError(name_or_path, ["is a folder; hint: give a file of it, such as its plan.json"])
    if is_job_file(path):
        return read_job_file(path)
    if plain.suffix.lower() not in SUFFIXES or plain.suffix.lower() == ".csv":
        return read_table_set(path)
    return source_of(read_data(path), where=str(path))


def source_of(raw: object, *, where: str) -> DocumentSource:
    """Return plain data as the document that it says it is. Raises DocumentError."""
    if PlanRequest.is_named_by(raw):
        return PlanRequest.from_data(raw, where=where)
    if GivenPlan.is_named_by(raw):
        return any_plan(raw, where=where).request
    if is_resource(raw):
        return JobFile.of(raw, path=Path(where))
    return table_set_of_data(raw, where=where, name=Path(where).name.split(".")[0])


def build_request(
    options: RequestOptions, algorithm: Algorithm | str | None, *, with_dense_of_jobs: bool = False
) -> PlanRequest:
    """Return the request that the options stand for. Raises as `read_source` and `request_of`.

    Args:
        options: what is planned; tables of a job file come with all that the job says.
        algorithm: None: that of the job or of the request, or NeuroShard's.
        with_dense_of_jobs: see `request_of`.
    """
    return request_of(read_source(options.tables), options, algorithm, with_dense_of_jobs=with_dense_of_jobs)


def request_of(
    source: Source,
    options: RequestOptions,
    algorithm: Algorithm | str | None,
    *,
    with_dense_of_jobs: bool = False,
    other_sizes: Sequence[int] = (),
) -> PlanRequest:
    """Return the request for a source with these options, whose ``tables`` is its name in errors.

    Args:
        source: what is planned.
        options: over what the source says.
        algorithm: None: that of the source, or NeuroShard's.
        with_dense_of_jobs: count the dense part that NeuroShard's trainer builds for a job, as ``neuroshard run`` and
            the operator do before they plan; without TorchRec a sentence on stderr says that it is not counted.
        other_sizes: batch sizes at which the same model will be asked for. Counts at all of them take less together.

    Raises:
        CommandError: an option contradicts another one or the source, or a setting does not change the request.
        DocumentError: the tables cannot be read, or not be planned so.
    """
    chosen = None if algorithm is None else Algorithm(algorithm)
    if isinstance(source, PlanRequest):
        return _request_again(source, options, chosen)
    if options.batch_size is not None and _BATCH_SIZE in options.set:
        raise CommandError(f"--batch-size: excludes --set {_BATCH_SIZE}; hint: give one of them")
    if options.dense is not None and options.set.get(_DENSE_MEMORY) is not None:
        raise CommandError(
            f"--dense: excludes --set {_DENSE_MEMORY}, which takes the place of the count; hint: give one of them"
        )
    ask = _of_job(source, options, chosen) if isinstance(source, JobFile) else _of_tables(source, options, chosen)
    asked = ask(options.set)
    for path in options.set:
        _require_effect(path, ask, options, asked)
    request = asked.request
    if options.servers is not None:
        request = with_server_pool(request, options.servers)
    if options.dense is None:
        return request if asked.job is None or not with_dense_of_jobs else _with_dense(request, asked.job, other_sizes)
    counted = [options.dense_path(size) for size in request.batch_sizes]
    profiles = [each for file in dict.fromkeys(counted) for each in read_dense(file)]
    return request.with_dense_of(profiles, where=str(counted[0]))


def require_no_options(options: RequestOptions, *, but: frozenset[str], where: str) -> None:
    """Do nothing if no option is given but these, since a document has all others. Raises CommandError."""
    other = next((name for name in options.given() if name not in but), None)
    if other is not None:
        what = "TABLES" if other == "tables" else f"--{other.replace('_', '-')}"
        raise CommandError(f"{what}: {where} already says what it answers; hint: leave it out")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """A spec with its settings, and its request without a counted dense part."""

    spec: Spec
    request: PlanRequest
    job: DLRMTrainingJob | None = None
    """None: of a table set or a module, whose trainer is not known."""


_Ask = Callable[[Settings], _Asked]


def _require_effect(path: str, ask: _Ask, options: RequestOptions, asked: _Asked) -> None:
    """Do nothing if a setting changes the request, or is what it would be anyway. Raises CommandError."""
    try:
        without = ask({name: value for name, value in options.set.items() if name != path})
    except ValueError:  # what other settings need
        return
    if without.spec != asked.spec and without.request == asked.request:
        needs_count = options.dense is None and path.startswith(_OF_DENSE)
        remedy = "give the counted dense part to `neuroshard plan --dense`" if needs_count else "leave it out"
        raise CommandError(f"--set {path}: does not change what is planned here; hint: {remedy}")


def _request_again(given: PlanRequest, options: RequestOptions, algorithm: Algorithm | None) -> PlanRequest:
    """Return a request, at another batch size or for another algorithm where these are named. Raises CommandError."""
    but = frozenset({"tables", "bundle", "batch_size", "servers"})
    require_no_options(options, but=but, where=options.tables or "the request")
    if options.servers is not None:
        given = with_server_pool(given, options.servers)
    changes: dict[str, object] = {}
    if options.batch_size is not None:
        if given.dense is not None and options.batch_size != given.dense.batch_size_per_device:
            raise CommandError(
                f"--batch-size: the dense part of {options.tables or 'the request'} was counted for "
                f"{given.dense.batch_size_per_device:,} samples per device; hint: give the job that it was made of"
            )
        changes["batch_size_per_device"] = options.batch_size
    if algorithm is not None:
        changes["algorithm"] = algorithm
    raw = given.model_dump(mode="json", exclude_none=True)
    return validated(PlanRequest, {**raw, **changes}, where="request") if changes else given


def _of_job(file: JobFile, options: RequestOptions, algorithm: Algorithm | None) -> _Ask:
    """Return a function from settings to the request of a job, on the devices of the options, or else its own."""
    if options.constraints is not None:
        raise CommandError(
            "--constraints: are of a table set or a module, and the operator plans a job by its spec alone"
            f"; hint: set limits in spec.planner of {file.path}"
        )
    if file.job.spec.plan_ref is not None:
        _say_given(str(file.path))
    given = {} if options.batch_size is None else {_BATCH_SIZE: options.batch_size}

    def ask(settings: Settings) -> _Asked:
        set_ = {**given, **settings}
        job = DLRMTrainingJob.from_data(with_settings(file.document, set_), where=str(file.path)) if set_ else file.job
        changed = replace(file, job=job)
        if not changed.has_tables:
            raise CommandError(
                f"{file.path}: its tables are in a ConfigMap of the cluster; hint: add it to the file after a line "
                "`---`, or give a file next to it: --set 'spec.model.embeddingTablesFrom={file: tables.yaml}'"
            )
        topology = build_topology(_with_devices_of(changed, options))
        tables = with_variants(changed.tables(), job.spec.variants)
        request = plan_request(job, tables=tables, topology=topology, algorithm=algorithm)
        return _Asked(spec=job.spec, request=request, job=job)

    return ask


def _with_dense(request: PlanRequest, job: DLRMTrainingJob, other_sizes: Sequence[int]) -> PlanRequest:
    """Return a job's request with the counted dense part that NeuroShard's trainer builds, where TorchRec is here."""
    if not counts_dense(job.spec):
        return request
    if find_spec("torchrec") is None:
        _say_not_counted()
        return request
    on_cpu = request.topology.device.is_cpu
    profiles = _counted(job, request.tables, (*request.batch_sizes, *other_sizes), on_cpu=on_cpu)
    return request.with_dense_of(profiles, where="the counted dense part")


def _counted(job: DLRMTrainingJob, tables: TableSet, sizes: Sequence[int], *, on_cpu: bool) -> tuple[DenseProfile, ...]:
    dense_profiles = _counter()
    torch_logger = logging.getLogger("torch")
    level = torch_logger.level
    torch_logger.setLevel(logging.ERROR)  # it warns of fake tensors
    try:
        return dense_profiles(job, tables, sizes, multi_tensor=not on_cpu)
    finally:
        torch_logger.setLevel(level)


@cache
def _counter() -> "DenseCounter":
    """Return the trainer's function; torch is imported the first time."""
    with uncollected_imports():
        from neuroshard_trainer.dense_profile import dense_profiles
    return dense_profiles


@cache
def _say_given(path: str) -> None:
    """Say once of each file that its job brings its plan."""
    say(f"{path}: spec.planRef: the job is trained under that plan, and not under this one")


@cache
def _say_not_counted() -> None:
    """Say so once, however many requests are made."""
    say(
        f"the dense part is not counted, which takes TorchRec (not installed); hint: {install_hint('run')}, or "
        "count it elsewhere by `python -m neuroshard_trainer.dense_profile JOB --out dense.json`, for "
        "`neuroshard plan --dense`"
    )


def _with_devices_of(file: JobFile, options: RequestOptions) -> RequestOptions:
    """Return the options with the devices of the job where they name none. Raises CommandError."""
    if described_devices(options) is not None:
        return options
    spec = file.job.spec
    own = spec.profiler.device_type
    if options.device_type is None and own is not None:
        find_preset(own, option=f"{file.path}: spec.profiler.deviceType")
    device_type = options.device_type or own or _selected_product(spec)
    if device_type is None:
        raise CommandError(
            f"--device-type: is missing, and {file.path} names none in spec.profiler.deviceType"
            "; hint: give --device-type, one of `neuroshard devices`, or, for CPUs, what `neuroshard profile` writes: "
            "--devices profile/topology.json --bundle profile/bundle"
        )
    if options.devices is not None:
        return replace(options, device_type=device_type)
    trainer = spec.trainer
    return replace(options, device_type=device_type, devices=f"{trainer.num_nodes}x{trainer.devices_per_node}")


def _selected_product(spec: Spec) -> str | None:
    """Return the device type to whose nodes a job's pods go. None: they name no product, several, or an unknown one."""
    products = _required_products(spec.pod_template.spec)
    found = [name for name, each in load_presets().items() if each.device.product in products]
    return found[0] if len(products) == len(found) == 1 else None


def _required_products(pod_spec: Mapping[str, Any]) -> set[str]:
    """Return the products of which a pod requires one, by its node selector or in each term of its affinity."""
    selector = pod_spec.get("nodeSelector")
    if isinstance(selector, Mapping) and _PRODUCT_LABEL in selector:
        return {str(selector[_PRODUCT_LABEL])}
    terms: Any = pod_spec
    for name in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"):
        terms = terms.get(name) if isinstance(terms, Mapping) else None
    named = [list(_products_of(term)) for term in terms] if isinstance(terms, list) else []
    return {product for products in named for product in products} if all(named) else set()


def _products_of(term: object) -> Iterator[str]:
    """Yield the products of which a term of a node affinity requires one."""
    expressions = term.get("matchExpressions") if isinstance(term, Mapping) else None
    for each in expressions if isinstance(expressions, list) else ():
        if isinstance(each, Mapping) and each.get("key") == _PRODUCT_LABEL and each.get("operator") == "In":
            yield from map(str, each.get("values") or ())


def _of_tables(source: TableSet | Module, options: RequestOptions, algorithm: Algorithm | None) -> _Ask:
    """Return a function from settings to the request of tables whose trainer is not known."""
    given = options.constraints or Constraints()
    limits = Constraints.read(given) if isinstance(given, Path) else given
    topology = build_topology(options)
    if isinstance(source, TableSet):
        tables, of_module, dense_bytes, matrices = source, None, None, None
    else:
        of_module = source.tables()
        tables, dense_bytes = of_module.table_set, source.dense_bytes(of_module)
        matrices = source.dense_matrices(of_module)
        limits = with_module_limits(of_module, limits)
    start = _job_of(tables, num_devices=topology.num_devices, batch_size=options.batch_size)

    def ask(settings: Settings) -> _Asked:
        spec = JobManifest.from_data(with_settings(start, settings), where="--set").spec
        request = spec_request(
            spec,
            tables=tables if of_module is None else _tables_of_module(of_module, settings),
            topology=topology,
            algorithm=algorithm,
            deduplicated=(tables.duplication_groups or None) if _leaves_out_repeats(spec) else None,
            remarks=(),
            counts_dense=options.dense is not None,
            has_expandable_segments=True,
            limits=limits,
        )
        if of_module is not None:
            request = with_managed_collision(request, of_module)
            request = request.model_copy(update={"refused_levers": (LeverName.STORED_TYPES,)})
        if matrices is not None and options.dense is None:
            request = request.model_copy(update={"dense_matrices": matrices})
        if (
            dense_bytes is not None
            and spec.experimental.planner.dense_memory_per_device is None
            and options.dense is None
        ):
            memory = request.memory.model_copy(update={"dense_bytes": dense_bytes})
            request = request.model_copy(update={"memory": memory})
        return _Asked(spec=spec, request=request)

    return ask


def _job_of(tables: TableSet, *, num_devices: int, batch_size: int | None) -> dict[str, Any]:
    """Return a job of defaults for tables, as plain data; what the table set says of batch and optimizer holds."""
    if batch_size is None and tables.global_batch_size is not None:
        batch_size = -(-tables.global_batch_size // num_devices)
    model: dict[str, Any] = {"embeddingTablesFrom": {"file": "tables.json"}}
    if batch_size is not None:
        model["batchSizePerDevice"] = batch_size
    if tables.optimizer is not None:
        model["embeddingOptimizer"] = EmbeddingOptimizer[Optimizer(tables.optimizer).name].value
    spec: dict[str, Any] = {"model": model}
    if tables.duplication_groups:  # of a log in sessions, whose repeats a plan leaves out on request
        spec["data"] = {"format": "Parquet", "path": "log", "sessionColumn": "session", "deduplication": "Off"}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "tables"}, "spec": spec}


def _leaves_out_repeats(spec: Spec) -> bool:
    return spec.has_sessions and spec.data.deduplication is Deduplication.AUTO


def _tables_of_module(found: "ModelTables", settings: Settings) -> TableSet:
    """Return a module's tables, with its optimizers unless a setting names one. Raises CommandError."""
    if settings.get(_DATA_TYPES) is not None:
        raise CommandError(
            f"--set {_DATA_TYPES}: the tables of a module have the types that it gives them, which no plan changes"
            "; hint: set data_type of the module's EmbeddingBagConfig, or leave the setting out"
        )
    if _OPTIMIZER in settings:
        return without_optimizers(found.table_set)
    if found.optimizer_problem:
        raise CommandError(found.optimizer_problem)
    return found.table_set
