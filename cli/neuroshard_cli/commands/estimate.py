"""``neuroshard estimate``: how many devices, and of which kind."""

from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.completion import complete_device_types
from neuroshard_cli.shared.output import ResultFile, deliver, json_text, places_of, print_json, print_text
from neuroshard_cli.shared.request_options import (
    MOST_USED,
    BundleOption,
    DenseOption,
    JsonOption,
    OutOption,
    SetOption,
    SourceArgument,
)

if TYPE_CHECKING:
    from neuroshard_report.explain.device_counts import DeviceCount


def estimate(  # noqa: PLR0917 - typer passes by name
    tables: SourceArgument = None,
    devices: Annotated[
        str,
        typer.Option(
            help="Numbers of devices: a range that doubles, single ones, or both, such as 8..128 or 8,12,16.",
            rich_help_panel=MOST_USED,
        ),
    ] = "8..64",
    device_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE[=PRICE/h],...",
            help="Kinds to compare, of `neuroshard devices`, each with the price of a device for an hour or none, such "
            "as h100-80gb=2.99/h. Default: those with bundled cost models.",
            rich_help_panel=MOST_USED,
            autocompletion=complete_device_types,
        ),
    ] = None,
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**31,
            help="Samples of a step on all devices, which stay when their number changes. Default: a job's or table "
            "set's own; with --set spec.model.batchSizePerDevice=8192, those of each device stay.",
            rich_help_panel=MOST_USED,
        ),
    ] = None,
    out: OutOption = None,
    set_: SetOption = None,
    dense: DenseOption = None,
    bundle: BundleOption = None,
    json: JsonOption = False,
) -> None:
    """Plan a model on several numbers and kinds of devices: speed, memory, and price of a sample for each.

    Each line is the plan that `neuroshard plan` makes for these devices.
    """
    from neuroshard_api.job.settings import parse_settings
    from neuroshard_dlrm.device_counts import (
        kept_batch,
        parse_counts,
        parse_kinds,
        planned_counts,
        requests_on,
    )
    from neuroshard_dlrm.requests import read_source
    from neuroshard_planner.errors import InfeasibleError
    from neuroshard_report.device_counts import DeviceCounts
    from neuroshard_report.terminal.device_counts import render_device_counts
    from neuroshard_report.terminal.progress import activity

    places = places_of(out)
    types, prices = parse_kinds(device_type)
    counts = parse_counts(devices)
    options = RequestOptions(tables=tables, set=parse_settings(set_ or ()), dense=dense)
    source = read_source(tables)
    batch = kept_batch(source, options, of_all=global_batch_size)
    requests = requests_on(source, options, device_types=types, counts=counts, batch=batch)
    points: dict[int, DeviceCount] = {}
    with activity("planning", is_silent=json) as shown:
        ready = planned_counts(requests, bundle=bundle, prices=prices)
        points.update(shown.of(ready, total=len(requests), amount=lambda _: 1))
    found = DeviceCounts(
        name=requests[0].tables.name,
        counts=tuple(points[place] for place in range(len(requests))),
        per_device=batch.per_device,
        of_all=batch.of_all,
    )

    def show() -> None:
        if json:
            print_json(found.described())
        else:
            print_text(render_device_counts(found))

    def page() -> str:
        from neuroshard_report.html.device_counts import render_device_counts_html

        return render_device_counts_html(found)

    document = ResultFile("estimate", places.document, lambda: json_text(found.described()))
    deliver(show, document, ResultFile("report", places.page, page), says=not json)
    if all(each.plan is None for each in found.counts):
        raise InfeasibleError(
            f"{tables}: fits on none of these devices; hint: ask for more of them with --devices, or see what would "
            "help with `neuroshard plan`"
        )
