"""``neuroshard calibrate``: a bundle corrected by what was measured, calls of a machine or steps of a training."""

import json as json_format
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import check_writable, print_text

if TYPE_CHECKING:
    from neuroshard_api.documents.bundle import BundleManifest
    from rich.console import RenderableType

_PLANS = {"plan", "torchrec-plan"}
_RECORD = "profile-record"


def calibrate(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="Cost models: a bundle's directory, or a profile's with one in it.")
    ],
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED...",
            help="Records of a machine, in JSON lines; or a plan, and step reports and drift reports of its training.",
        ),
    ],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new directory, of the same kind as BUNDLE.")],
) -> None:
    """Correct cost models by measurements: records of another machine, or the steps of a training.

    At least eight records are needed, which rescale the networks; or the steps of two reports, which give each part of
    a step a factor, if that lowers the error on the steps of the other reports. The error before and after is printed.
    """
    from neuroshard_report.terminal.bundle import render_manifest

    check_writable(out, is_folder=True)
    kinds = {path: _kind(path) for path in measured}
    plans = [path for path in measured if kinds[path] in _PLANS]
    if len(measured) == 1 and kinds[measured[0]] in {_RECORD, ""}:
        manifest, tables = _by_records(bundle, measured[0], out)
    else:
        manifest, tables = _by_steps(bundle, _only(plans), [path for path in measured if path not in plans], out)
    for table in (render_manifest(manifest), *tables):
        print_text(table)
    say(f"bundle written to {out}")


def _by_records(bundle: Path, records: Path, out: Path) -> "tuple[BundleManifest, Sequence[RenderableType]]":
    from neuroshard_costs.fitting.calibration import calibrate as calibrated

    return calibrated(bundle, records, out, say=say), ()


def _by_steps(
    bundle: Path, plan: Path, reports: Sequence[Path], out: Path
) -> "tuple[BundleManifest, Sequence[RenderableType]]":
    from neuroshard_costs.fitting.step_correction import corrected
    from neuroshard_planner.correct import priced_again
    from neuroshard_report.terminal.bundle import render_step_factors

    manifest, factors = corrected(bundle, plan, reports, out, price=priced_again)
    return manifest, (render_step_factors({str(part): found for part, found in factors.items()}),)


def _only(plans: Sequence[Path]) -> Path:
    if len(plans) != 1:
        found = "none" if not plans else ", ".join(map(str, plans))
        raise CommandError(
            f"MEASURED: steps are measured under one plan, found {found}; hint: give the plan that the training had, "
            "and its reports; or one file of records"
        )
    return plans[0]


def _kind(path: Path) -> str:
    """Return the kind of the document, or of the first of a file of records; empty where the file names none."""
    from neuroshard_api.documents.document import read_text

    text = read_text(path).lstrip()
    try:
        found, _ = json_format.JSONDecoder().raw_decode(text)
    except ValueError:
        return ""
    return str(found.get("schema_version", "")).partition("/")[0] if isinstance(found, dict) else ""
