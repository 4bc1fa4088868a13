"""``neuroshard pretrain``: cost models of a simulated device."""

from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.completion import complete_device_types
from neuroshard_cli.shared.output import check_writable, print_text, progress_console


def pretrain(
    *,
    device_type: Annotated[
        str,
        typer.Option(help="A device of `neuroshard devices`; it is simulated.", autocompletion=complete_device_types),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle's directory; one that is there is replaced.")],
) -> None:
    """Train cost models on a simulated device.

    An interrupted run resumes where it stopped.
    """
    from neuroshard_costs.pretrain.train import PretrainSettings, pretrain
    from neuroshard_dlrm.devices import find_preset
    from neuroshard_report.terminal.bundle import render_manifest
    from rich.progress import Progress

    preset = find_preset(device_type)
    check_writable(out, is_folder=True)
    console = progress_console()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        manifest = pretrain(preset, out, PretrainSettings(), progress)
    print_text(render_manifest(manifest))
    say(f"bundle written to {out}")
