"""What the result ConfigMaps say, as far as decisions and status need it. Writes nothing, calls no API."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuroshard_api.documents.bundle import BundleManifest
from neuroshard_api.documents.config_map import contents_of
from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, decoded, parse_data
from neuroshard_api.documents.drift_report import DriftChange, DriftReport
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.plan import Plan, any_plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.documents.tables import Table, TableSet, planned_facts
from neuroshard_api.job.stage_commands import (
    DRIFT_REPORT_FILE,
    HARDWARE_FILE,
    INPUT_STATISTICS_FILE,
    PROGRESS_FILE,
    STEP_REPORT_FILE,
)
from neuroshard_api.job.status import BestBaseline, LeverStatus, MeasuredCost, PredictedCost
from neuroshard_api.job.step_cost import baseline_cost, embedding_ms, levers_of, measured_cost, predicted_cost
from neuroshard_api.replanning.decision import WARM_UP_STEPS
from neuroshard_api.replanning.support import unsupported_inputs

from neuroshard_decisions import names
from neuroshard_decisions.observed.limits import LIMITS, unpacked

PLAN_FILE = "plan.json"
MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanResult:
    """A plan that can be read."""

    hash: str
    """sha256 of the document, in hexadecimal."""
    algorithm: str
    world_size: int
    model_hash: str
    """Hash of the planned tables: names, rows, columns and types."""
    tables_hash: str
    """Hash of everything that the plan's request says of the tables."""
    placement_hash: str
    """Hash of what workers do under the plan, without its prices."""
    num_tables: int
    samples_per_device: int
    """Of a step."""
    key: str
    """Key of the plan's file in its ConfigMap: large plans are compressed."""
    predicted: PredictedCost | None
    """None: the plan was given without a price."""
    baseline: BestBaseline | None
    """The cheapest baseline that found a plan."""
    levers: tuple[LeverStatus, ...] | None
    """What would save time. None: the plan names nothing."""
    host_bytes_per_node: int
    """Tables in host memory, of the node with most; 0 for a plan without a price, which has no ledger."""
    nodes_per_rack: int | None = None
    """Nodes that the plan has in each rack. None: it has no racks."""
    incumbent_hash: str | None = None
    """sha256 of the plan in force that it was made near to. None: it was made without one."""
    incumbent_ms: float | None = None
    """What the plan in force costs under this plan's request. None: it was made without one."""
    total_ms: float | None = None
    """Predicted cost. None: the plan was given without a price."""
    servers: ServerPool | None = None
    """Embedding servers that hold tables. None: there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSummary:
    """A profile that can be read."""

    source: str
    hardware: Hardware
    hash: str
    """sha256 of the manifest, in hexadecimal; it names the weights too."""
    correction_error: float | None = None
    """Mean error on measured steps that the correction was not fitted to. None: the profile is as it was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DriftSummary:
    """What a drift report says, as far as it decides something."""

    plan_hash: str
    """sha256 of the plan that was trained under."""
    reported_by: str | None
    """torchrun's id of the run that reported; None where it is not known."""
    last_step: int
    reference_step_ms: float
    """Step of the slowest rank before the changes, and now."""
    step_ms: float
    reference_end: int
    """Number of the step after those of the reference."""
    reference_embedding_ms: float
    """Embedding part of a step before the changes."""
    compute_ms: Mapping[int, float]
    """Compute of the lookups now, by rank."""
    changes: tuple[DriftChange, ...]
    headline: str | None
    """The changes in one line. None: there is none."""
    checkpoint_ms: float | None
    start_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportSummary:
    """What the workers reported last; each part may be of another run of them."""

    plan_hash: str
    """sha256 of the plan that was trained under; empty before the first steps were measured."""
    measured: MeasuredCost | None
    measured_by: str | None
    """torchrun's id of the run that measured; None where it is not known."""
    progress: TrainingProgress | None
    drift: DriftSummary | None = None
    """None: nothing watches for drift, or it has no reference yet."""
    drift_problem: str = ""
    """Why the drift report cannot be used; empty: it can, or there is none."""
    first_step: int | None = None
    """Number of the first step that was measured. None: none was."""
    step_keys: tuple[str, ...] = ()
    """Keys of drift report and step report in the ConfigMap, where both are there."""
    statistics_key: str | None = None
    """Key of the input statistics in the ConfigMap. None: there are none."""
    unsupported_inputs: str | None = None
    """Why no candidate is made for the inputs that changed. None: one can be, or the statistics cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unreadable:
    """Something was published, and it is not what it should be."""

    problem: str


ResultDocument = PlanResult | ProfileSummary | ReportSummary | Unreadable | None


def read_result(role: str, body: Mapping[str, Any]) -> ResultDocument:
    """Return the result in a ConfigMap; `role` is that of its writer. None: nothing is published yet."""
    contents = contents_of(body)
    if not contents.data and not contents.binary_data:
        return None
    where = body["metadata"]["name"]
    limits = LIMITS.get(role, LIMITS[names.WORKER])
    try:
        files = unpacked(contents, where, limits)
        if role in {names.PLAN, names.PLANNER}:
            return _plan(files, sorted({*contents.data, *contents.binary_data}), where)
        if role in {names.PROFILE, names.PROFILER, names.CALIBRATOR}:
            return profile_summary(files, where=where)
        if role in {names.WORKER, names.INPUTS, names.STEPS}:
            return report_summary(files, sorted({*contents.data, *contents.binary_data}), where=where)
    except DocumentError as error:
        return Unreadable(problem=str(error))
    return None


def content_hash(body: Mapping[str, Any]) -> str:
    """Return the sha256 of the plan in a ConfigMap; empty where there is none."""
    try:
        files = unpacked(contents_of(body), "plan", LIMITS[names.PLAN])
    except DocumentError:
        return ""
    return hashlib.sha256(files[PLAN_FILE]).hexdigest() if PLAN_FILE in files else ""


def plan_summary(text: bytes, *, key: str, where: str) -> PlanResult:
    """Return a summary of a plan. Raises DocumentError."""
    plan = any_plan(parse_data(decoded(text, where=where), where=where, is_json=True), where=where)
    price = plan if isinstance(plan, Plan) else None
    return PlanResult(
        hash=hashlib.sha256(text).hexdigest(),
        algorithm=plan.algorithm.value,
        world_size=plan.num_devices,
        model_hash=model_hash(plan.request.tables.tables),
        tables_hash=tables_hash(plan.request.tables),
        placement_hash=plan.placement_sha256,
        num_tables=len(plan.tables),
        samples_per_device=plan.request.batch_size_per_device,
        key=key,
        predicted=None if price is None else predicted_cost(price),
        baseline=baseline_cost(plan),
        levers=levers_of(plan),
        host_bytes_per_node=0 if price is None else host_bytes_per_node(price),
        nodes_per_rack=None if (rack := plan.request.topology.rack) is None else rack.num_nodes,
        incumbent_hash=None if plan.incumbent is None else plan.incumbent.plan_sha256,
        incumbent_ms=None if plan.incumbent is None else plan.incumbent.total_ms,
        total_ms=None if price is None else price.predicted.total_ms,
        servers=None if plan.servers is None else plan.request.servers,
    )


def host_bytes_per_node(plan: Plan) -> int:
    """Return the host memory that a plan's tables take, on the node with most."""
    size = plan.request.topology.devices_per_node
    held = [each.host_bytes for each in plan.memory]
    return max(sum(held[first : first + size]) for first in range(0, len(held), size))


def tables_hash(tables: TableSet) -> str:
    """Return a hash of all that a table set says of its tables."""
    # Jobs keep this hash over upgrades: a field that came later counts only where it is set.
    each = (table.model_dump_json(exclude=None if table.pooling else {"pooling"}) for table in tables.tables)
    return hashlib.sha256("\n".join(each).encode()).hexdigest()


def model_hash(tables: Iterable[Table]) -> str:
    """Return a hash of the facts that a plan and a model must agree on."""
    lines = [" ".join(map(str, facts)) for facts in planned_facts(tables)]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _plan(files: Mapping[str, bytes], keys: Sequence[str], where: str) -> ResultDocument:
    if PLAN_FILE not in files:
        return Unreadable(problem=f"{where}: has no {PLAN_FILE}")
    key = next(key for key in keys if key.startswith(PLAN_FILE))
    return plan_summary(files[PLAN_FILE], key=key, where=f"{where}/{PLAN_FILE}")


def profile_summary(files: Mapping[str, bytes], *, where: str) -> ProfileSummary | Unreadable:
    """Return a summary of a profile, of its files by name. Raises DocumentError."""
    missing = [name for name in (MANIFEST_FILE, WEIGHTS_FILE, HARDWARE_FILE) if name not in files]
    if missing:
        return Unreadable(problem=f"{where}: has no {', '.join(missing)}")
    manifest = BundleManifest.from_json(files[MANIFEST_FILE], where=f"{where}/{MANIFEST_FILE}")
    weights = hashlib.sha256(files[WEIGHTS_FILE]).hexdigest()
    if weights != manifest.weights_sha256:
        return Unreadable(problem=f"{where}: {WEIGHTS_FILE} is not what {MANIFEST_FILE} says; it was damaged or edited")
    hardware = Hardware.from_json(files[HARDWARE_FILE], where=f"{where}/{HARDWARE_FILE}")
    calibration = manifest.calibration
    return ProfileSummary(
        source=manifest.source,
        hardware=hardware,
        hash=hashlib.sha256(files[MANIFEST_FILE]).hexdigest(),
        correction_error=None if calibration is None else calibration.mape_after,
    )


def report_summary(files: Mapping[str, bytes], keys: Sequence[str], *, where: str) -> ReportSummary:
    """Return a summary of what workers report.

    Args:
        files: by name.
        keys: under which they are kept: large ones are compressed.
        where: they are, for messages.

    Raises:
        DocumentError: step report or progress are damaged.
    """
    plan_hash, measured, measured_by, progress, first_step = "", None, None, None, None
    drift, drift_problem = None, ""
    if STEP_REPORT_FILE in files:
        report = StepReport.from_json(files[STEP_REPORT_FILE], where=f"{where}/{STEP_REPORT_FILE}")
        plan_hash, measured, measured_by = report.plan_sha256, measured_cost(report), report.run_id
        first_step = report.first_step
    if PROGRESS_FILE in files:
        found = TrainingProgress.from_json(files[PROGRESS_FILE], where=f"{where}/{PROGRESS_FILE}")
        progress = found.model_copy(update={"losses": (), "evaluations": (), "starts": ()})  # kept for each job
    if DRIFT_REPORT_FILE in files:
        try:
            drift = drift_summary(DriftReport.from_json(files[DRIFT_REPORT_FILE], where=f"{where}/{DRIFT_REPORT_FILE}"))
        except DocumentError as error:  # steps and progress are worth having without it
            drift_problem = str(error)
    key_of = {key.removesuffix(COMPRESSED_SUFFIX): key for key in keys}
    inputs = _inputs(files, where)
    is_other = inputs is not None and drift is not None and inputs.plan_sha256 != drift.plan_hash
    step_files = (DRIFT_REPORT_FILE, STEP_REPORT_FILE)
    return ReportSummary(
        plan_hash=plan_hash,
        measured=measured,
        measured_by=measured_by,
        progress=progress,
        drift=drift,
        drift_problem=drift_problem,
        first_step=first_step,
        step_keys=tuple(key_of[each] for each in step_files) if key_of.keys() >= set(step_files) else (),
        statistics_key=None if is_other else key_of.get(INPUT_STATISTICS_FILE),
        unsupported_inputs=None if inputs is None else unsupported_inputs(inputs),
    )


def _inputs(files: Mapping[str, bytes], where: str) -> InputStatistics | None:
    if INPUT_STATISTICS_FILE not in files:
        return None
    try:
        return InputStatistics.from_json(files[INPUT_STATISTICS_FILE], where=f"{where}/{INPUT_STATISTICS_FILE}")
    except DocumentError:  # the planner names what is wrong with it
        return None


def drift_summary(report: DriftReport) -> DriftSummary:
    """Return the facts of a drift report that decisions need."""
    return DriftSummary(
        plan_hash=report.plan_sha256,
        reported_by=report.run_id,
        last_step=report.last_step,
        reference_step_ms=max(times.step_ms for times in report.reference),
        step_ms=max(times.step_ms for times in report.recent),
        reference_end=(WARM_UP_STEPS if report.reference_first_step is None else report.reference_first_step)
        + report.reference_steps,
        reference_embedding_ms=embedding_ms(report.reference),
        compute_ms={times.rank: times.forward_compute_ms + times.backward_compute_ms for times in report.recent},
        changes=tuple(change.model_copy(update={"evidence": change.evidence[:1]}) for change in report.changes),
        headline=report.headline,
        checkpoint_ms=report.checkpoint_ms,
        start_ms=report.start_ms,
    )
