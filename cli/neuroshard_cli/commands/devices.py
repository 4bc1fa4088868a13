"""``neuroshard devices``: the device types that are known by name."""

import json as json_format

from neuroshard_cli.shared.output import print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption


def devices(
    json: JsonOption = False,
) -> None:
    """List the device types with built-in data.

    Those with bundled cost models are marked.
    """
    from neuroshard_api.documents.presets import load_presets
    from neuroshard_costs.bundle import bundled_names

    presets = load_presets()
    if json:
        rows = [preset.model_dump(mode="json") for preset in presets.values()]
        print_document(json_format.dumps(rows, indent=1) + "\n")
        return
    from neuroshard_report.terminal.listings import render_devices

    print_text(render_devices(presets, with_bundle=bundled_names()))
