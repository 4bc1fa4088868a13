"""A bundle's manifest for the terminal: where its cost models come from and how far they can be trusted."""

from collections.abc import Mapping
from typing import Protocol

from neuroshard_api.documents.bundle import BundleManifest
from rich.console import Group, RenderableType

from neuroshard_report.quantities import format_count, format_percent
from neuroshard_report.terminal.tables import TextTable, fact_grid


def render_manifest(manifest: BundleManifest) -> RenderableType:
    """Return the source, the device and each network's error on samples it was not trained on."""
    facts = [("bundle", manifest.name), ("source", manifest.source), ("device", manifest.device.product)]
    if (calibration := manifest.calibration) is not None:
        error = f"{format_percent(calibration.mape_before)} before, {format_percent(calibration.mape_after)} after"
        facts.append(("calibrated", f"to {calibration.source}, {calibration.num_records} records; error {error}"))
    rows = tuple(
        (
            network.name,
            format_count(network.hold_out.num_samples),
            format_percent(network.hold_out.mape),
            f"{network.hold_out.mse_ms2:.3g}",
            f"{network.hold_out.kendall_tau:.3f}",
        )
        for network in manifest.networks
    )
    columns = ("hold-out error", "samples", "MAPE", "MSE, ms2", "Kendall tau")
    return Group(fact_grid(facts), "", TextTable(columns=columns, rows=rows))


class StepFactor(Protocol):
    """Measured over predicted times of a part of a step, with the errors of predictions without and with it."""

    @property
    def factor(self) -> float:
        """Measured over predicted."""

    @property
    def num_times(self) -> int:
        """Times that were measured."""

    @property
    def mape_before(self) -> float:
        """Mean relative error before."""

    @property
    def mape_after(self) -> float:
        """Mean relative error on steps that the factor was not fitted to."""


def render_step_factors(factors: Mapping[str, StepFactor]) -> RenderableType:
    """Return the factors of parts of a step with their errors, by the part's name."""
    rows = tuple(
        (
            part,
            format_count(found.num_times),
            f"{found.factor:.3g}",
            format_percent(found.mape_before),
            format_percent(found.mape_after),
        )
        for part, found in factors.items()
    )
    columns = ("part of a step", "times", "measured / predicted", "error before", "on other steps after")
    return TextTable(columns=columns, rows=rows)
