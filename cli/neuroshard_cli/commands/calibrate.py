"""``neuroshard calibrate``: a bundle rescaled to another machine."""

from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import check_writable, print_document, print_text


def calibrate(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The directory of the cost models to rescale.")],
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="Measurements of the machine, in JSON lines.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The new bundle's directory.")],
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON; errors are JSON too.")] = False,
) -> None:
    """Rescale cost models to another machine.

    At least eight measurements are needed. The error before and after is printed, and kept in the manifest.
    """
    from neuroshard_costs.fitting.calibration import calibrate as calibrated
    from neuroshard_report.terminal.bundle import render_manifest

    check_writable(out, is_folder=True)
    manifest = calibrated(bundle, records, out, say=say)
    if json:
        print_document(manifest.to_json())
    else:
        print_text(render_manifest(manifest))
        say(f"bundle written to {out}")
