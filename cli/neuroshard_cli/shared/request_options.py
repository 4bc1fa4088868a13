"""Options that several commands share, as typer shows them, and those of a request as one argument."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.options import RequestOptions
from typer.models import ArgumentInfo

from neuroshard_cli.shared.batch_sizes import parse_batch_sizes
from neuroshard_cli.shared.completion import (
    complete_bundles,
    complete_device_types,
    complete_settings,
    complete_workloads,
)

MOST_USED = "Most used"
WHAT = "What is planned"
COSTS = "Devices and cost models"
SEARCH = "Search"
"""Titles of groups of options in the help."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON; errors are JSON too.")]
OutOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Write the result as JSON, or as a page where FILE ends in .html; may be repeated.",
        rich_help_panel=MOST_USED,
    ),
]
SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TABLES",
        help="A table set (YAML, JSON, CSV); a job, request, or plan file; package.module:function, which returns "
        "a TorchRec module or (module, batches); or a name of `neuroshard workloads`.",
        autocompletion=complete_workloads,
    ),
]
DeviceTypeOption = Annotated[
    str | None,
    typer.Option(
        help="A device of `neuroshard devices`. Default: a job's own.",
        rich_help_panel=MOST_USED,
        autocompletion=complete_device_types,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="A field of a job, over what TABLES says, such as spec.planner.maxMemoryPerDevice=70Gi; may be repeated.",
        rich_help_panel=MOST_USED,
        autocompletion=complete_settings,
    ),
]
DenseOption = Annotated[
    Path | None,
    typer.Option(
        help="The dense part as `python -m neuroshard_trainer.dense_profile` counted it; {batch} in the path is "
        "the samples per device. Default: a job's is counted, where TorchRec is installed.",
        rich_help_panel=WHAT,
    ),
]
BundleOption = Annotated[
    Path | None,
    typer.Option(
        help="Directory of cost models, or a device that has bundled ones. Default: the device type's.",
        rich_help_panel=COSTS,
        autocompletion=complete_bundles,
    ),
]

_SHOWN: Mapping[str, Any] = {
    "tables": SourceArgument,
    "devices": Annotated[
        str | None,
        typer.Option(
            help="Devices in all nodes, such as 16; nodes and devices of each, such as 2x8; or a topology file. "
            "Default: a job's own, in as many nodes as the device type usually fills.",
            rich_help_panel=MOST_USED,
        ),
    ],
    "device_type": DeviceTypeOption,
    "batch_size": Annotated[
        str | None,
        typer.Option(
            help="Samples per device and step. Default: that of the table set or job, else 8192.",
            rich_help_panel=MOST_USED,
        ),
    ],
    "set": SetOption,
    "constraints": Annotated[
        Path | None, typer.Option(help="A constraints file, for single tables.", rich_help_panel=WHAT)
    ],
    "dense": DenseOption,
    "servers": Annotated[
        str | None,
        typer.Option(
            metavar="COUNTxMEMORY",
            help="Embedding servers that may have tables, such as 2x192GiB, or with all that is assumed: "
            "2x192GiB,cores=64,gbps=100,processes=1,policy=if_needed; policy auto takes them whenever they are faster. "
            "Default: those of a job, else none.",
            rich_help_panel=COSTS,
        ),
    ],
    "bundle": BundleOption,
}
"""Type and help of each option, by its name."""


def takes_request_options(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of RequestOptions but some; it receives them as its one argument ``options``.

    The command's own arguments, which have no dashes, come before the table set. One that has ``batch_sizes`` receives
    all sizes of --batch-size there, and the first in the options; for others there is one size.
    """
    return functools.partial(_with_request_options, left_out=left_out)


def _with_request_options(command: Callable[..., None], *, left_out: Sequence[str]) -> Callable[..., None]:
    shared = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if each.default is MISSING else each.default,
            annotation=_SHOWN[each.name],
        )
        for each in fields(RequestOptions)
        if each.name not in left_out
    ]
    parameters = _parameters(command)
    own = [each for each in parameters if each.name not in {"options", "batch_sizes"}]
    takes_sizes = any(each.name == "batch_sizes" for each in parameters)

    @functools.wraps(command)
    def with_options(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
        from neuroshard_api.job.settings import parse_settings
        from neuroshard_dlrm.devices import parse_devices

        given = {each.name: values.pop(each.name) for each in shared}
        given["set"] = parse_settings(given["set"] or ())
        if given["devices"] is not None:
            parse_devices(given["devices"])  # a mistyped word is refused before files are read
        sizes = parse_batch_sizes(given["batch_size"])
        given["batch_size"] = sizes[0] if sizes else None
        if takes_sizes:
            values["batch_sizes"] = sizes
        elif len(sizes) > 1:
            raise CommandError(f"--batch-size: is one number here (found {len(sizes)}); hint: `plan` takes several")
        command(options=RequestOptions(**given), **values)

    is_argument = [isinstance(each.annotation.__metadata__[0], ArgumentInfo) for each in own]
    arguments = [each for each, first in zip(own, is_argument, strict=True) if first]
    parameters = [*arguments, *shared, *(each for each in own if each not in arguments)]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _parameters(command: Callable[..., Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(command, include_extras=True)
    return [
        each.replace(annotation=hints[each.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command).parameters.values()
    ]
