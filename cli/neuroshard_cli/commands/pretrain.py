"""``neuroshard pretrain``: cost models of a simulated device."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.completion import complete_device_types
from neuroshard_cli.shared.output import check_writable, print_document, print_text, progress_console
from neuroshard_cli.shared.request_options import JsonOption


def pretrain(
    *,
    device_type: Annotated[
        str,
        typer.Option(help="A device of `neuroshard devices`; it is simulated.", autocompletion=complete_device_types),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The bundle's directory; one that is there is replaced.")],
    samples: Annotated[
        int | None, typer.Option(min=100, help="Samples per network. Default: those of the bundled bundles.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Most passes over the samples. Default: those of the bundled bundles.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal bundles on equal libraries.")] = 0,
    json: JsonOption = False,
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
    settings = PretrainSettings(seed=seed)
    if samples is not None:
        settings = replace(settings, num_compute_samples=samples, num_communication_samples=samples)
    if epochs is not None:
        settings = replace(settings, compute_epochs=epochs, communication_epochs=epochs)
    console = progress_console()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        manifest = pretrain(preset, out, settings, progress)
    if json:
        print_document(manifest.to_json())
    else:
        print_text(render_manifest(manifest))
        say(f"bundle written to {out}")
