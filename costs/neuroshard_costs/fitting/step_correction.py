"""Cost models corrected by the measured steps of a training under a plan."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from neuroshard_api.documents.bundle import BUNDLE_FOLDER, BundleManifest
from neuroshard_api.documents.document import DocumentError, read_bytes, read_data
from neuroshard_api.documents.drift_report import DriftReport
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.job.stage_commands import HARDWARE_FILE
from neuroshard_api.process.atomic_file import write_whole
from neuroshard_api.replanning.decision import WARM_UP_STEPS

from neuroshard_costs.bundle import CostBundle, load_bundle, read_weights, save_bundle
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.step_calibration import CalibratedPart, PartFactor, calibration_of, step_factors

CORRECTED_SUFFIX = ", corrected by steps"
NAME_CHARACTERS = 128

Price = Callable[[Plan, CostBundle], Plan]
"""Returns a plan with the price that a bundle gives it."""


def corrected(
    bundle: Path, plan: Path, reports: Sequence[Path], out: Path, *, price: Price | None = None
) -> tuple[BundleManifest, dict[CalibratedPart, PartFactor]]:
    """Write a bundle, or a profile's folder, corrected by a training's steps; return its manifest and the factors.

    Args:
        bundle: a bundle's directory, or a profile's with one in it. The hardware next to either is kept,
            but for the speed of its cores: the corrected times are those of cores in training.
        plan: that was trained under.
        reports: of its steps.
        out: of the same kind as ``bundle``.
        price: of the plan. If unset: the plan has the bundle's price.

    Raises:
        RecordsError: the plan has groups of devices; or the reports are of another plan, of several machines, of the
            same steps, or of steps that became slower, or tell too little.
        CostModelError: the bundle cannot be read.
        DocumentError: a file is damaged.
    """
    is_profile = (bundle / BUNDLE_FOLDER).is_dir()
    bundle_dir = bundle / BUNDLE_FOLDER if is_profile else bundle
    costs = load_bundle(bundle_dir)
    trained = Plan.from_data(read_data(plan), where=str(plan))
    if trained.replication is not None:
        raise RecordsError(
            f"{plan}: replication: steps of groups of devices hold averages of copies, which no cost model predicts"
            "; hint: calibrate by a training under a plan without groups"
        )
    source, measured = _measured(plan, reports)
    if price is not None:
        if trained.deduplication is not None:
            raise RecordsError(
                f"{plan}: deduplication: repeated lists are left out, and a price for all lists is not the training's"
                "; hint: calibrate by a training under a plan of all lists"
            )
        trained = price(trained, costs)
    factors = step_factors(trained.predicted.devices, measured)
    calibration = calibration_of(factors, source=source, before=costs.manifest.calibration)
    manifest = save_bundle(
        out / BUNDLE_FOLDER if is_profile else out,
        costs.manifest.model_copy(update={"calibration": calibration, "name": _corrected_name(costs.manifest.name)}),
        read_weights(bundle_dir),
    )
    if (bundle / HARDWARE_FILE).is_file():
        hardware = Hardware.read(bundle / HARDWARE_FILE)
        write_whole(out / HARDWARE_FILE, hardware.model_copy(update={"core_loop_ms": None}).to_json())
    return manifest, factors


def _corrected_name(name: str) -> str:
    """Return the name that plans give the corrected models."""
    return (
        name if name.endswith(CORRECTED_SUFFIX) else name[: NAME_CHARACTERS - len(CORRECTED_SUFFIX)] + CORRECTED_SUFFIX
    )


def _measured(plan: Path, reports: Sequence[Path]) -> tuple[str, list[Sequence[RankTimes]]]:
    """Return the source of reports, and the times of each set of steps. Raises DocumentError and RecordsError."""
    found: list[tuple[Path, DriftReport | StepReport]] = []
    for path in reports:
        raw = read_data(path)
        kind = raw.get("schema_version") if isinstance(raw, dict) else None
        if kind not in {DriftReport.schema_name, StepReport.schema_name}:
            wanted = f"{StepReport.schema_name!r} or {DriftReport.schema_name!r}"
            raise DocumentError(str(path), [f"schema_version: must be {wanted}, found {kind!r}"])
        document = DriftReport if kind == DriftReport.schema_name else StepReport
        found.append((path, document.from_data(raw, where=str(path))))
    _require_same_training(plan, found)
    _require_different_steps(found)
    for path, report in found:
        if isinstance(report, DriftReport) and report.changes:
            raise RecordsError(
                f"{path}: {report.headline}; a calibration would take that for the device"
                "; hint: calibrate by reports from before that step"
            )
    return found[0][1].source, [
        report.reference if isinstance(report, DriftReport) else report.ranks for _, report in found
    ]


def _require_different_steps(reports: Sequence[tuple[Path, DriftReport | StepReport]]) -> None:
    """Raise RecordsError for steps that two reports share: the error on them is of steps that were fitted to."""
    spans = sorted(((_span(report), path) for path, report in reports), key=lambda each: each[0].start)
    for (before, first), (after, second) in pairwise(spans):
        if after.start < before.stop:
            raise RecordsError(
                f"{second}: steps {after.start:,} to {after.stop - 1:,} are in part those of {first}, "
                f"{before.start:,} to {before.stop - 1:,}, and an error is held out only on other steps"
                "; hint: give reports of steps that do not overlap, as a longer training leaves them"
            )


def _span(report: DriftReport | StepReport) -> range:
    """Return the steps of a report's times; a drift report that does not name them is of a start at step 0."""
    if isinstance(report, StepReport):
        return range(report.first_step, report.first_step + report.num_steps)
    first = WARM_UP_STEPS if report.reference_first_step is None else report.reference_first_step
    return range(first, first + report.reference_steps)


def _require_same_training(plan: Path, reports: Sequence[tuple[Path, RunDocument]]) -> None:
    """Raise RecordsError for reports of another plan or of several machines."""
    sha256 = hashlib.sha256(read_bytes(plan)).hexdigest()
    first = reports[0][1]
    for path, report in reports:
        if report.plan_sha256 != sha256:
            raise RecordsError(
                f"{path}: plan_sha256: is {report.plan_sha256[:12]}..., {plan} has {sha256[:12]}..."
                "; hint: give the plan file that the training ran under"
            )
        if report.source != first.source:
            raise RecordsError(
                f"{path}: source: is {report.source!r}, that of {reports[0][0]} is {first.source!r}"
                "; hint: calibrate for one machine at a time"
            )
