"""The options that describe what to plan, common to several commands, as typer shows them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from neuroshard_dlrm.options import RequestOptions
from typer.models import ArgumentInfo

from neuroshard_cli.shared.completion import complete_device_types, complete_workloads

MOST_USED = "Most used"
WHAT = "What is planned"
COSTS = "Devices and cost models"
SEARCH = "Search"
"""Titles of groups of options in the help."""

_SHOWN: Mapping[str, Any] = {
    "tables": Annotated[
        str | None,
        typer.Argument(
            metavar="TABLES",
            help="A table set (YAML, JSON, CSV); a job, request, or plan file; package.module:function, which returns "
            "a TorchRec module or (module, batches); or a name of `neuroshard workloads`.",
            autocompletion=complete_workloads,
        ),
    ],
    "devices": Annotated[
        int | None, typer.Option(min=1, help="Devices in all nodes. Default: a job's own.", rich_help_panel=MOST_USED)
    ],
    "nodes": Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Nodes they stand in. Default: as many as the device type usually fills.",
            rich_help_panel=MOST_USED,
        ),
    ],
    "device_type": Annotated[
        str | None,
        typer.Option(
            help="A device of `neuroshard devices`. Default: a job's own.",
            rich_help_panel=MOST_USED,
            autocompletion=complete_device_types,
        ),
    ],
    "batch_size": Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**24,
            help="Samples per device and step. Default: that of the table set or job, else 8192.",
            rich_help_panel=MOST_USED,
        ),
    ],
    "set": Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUE",
            help="A field of a job, over what TABLES says, such as spec.planner.maxMemoryPerDevice=70Gi; may be "
            "repeated.",
            rich_help_panel=WHAT,
        ),
    ],
    "constraints": Annotated[
        Path | None, typer.Option(help="A constraints file, for single tables.", rich_help_panel=WHAT)
    ],
    "dense": Annotated[
        Path | None,
        typer.Option(
            help="The dense part as `python -m neuroshard_trainer.dense_profile` counted it; {batch} in the path is "
            "the batch size.",
            rich_help_panel=WHAT,
        ),
    ],
    "topology": Annotated[
        Path | None,
        typer.Option(
            help="Devices described by a topology file, instead of --devices, --nodes, and --device-type.",
            rich_help_panel=COSTS,
        ),
    ],
    "bundle": Annotated[
        Path | None,
        typer.Option(
            help="Directory of cost models, or a device that has bundled ones. Default: the device type's.",
            rich_help_panel=COSTS,
        ),
    ],
    "any_device": Annotated[
        bool,
        typer.Option(
            "--any-device",
            help="Plan with cost models of another device; the plan warns of it.",
            rich_help_panel=COSTS,
        ),
    ],
}
"""Type and help of each option, by its name."""


def takes_request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameters of RequestOptions; it receives them as its one argument ``options``.

    The command's own arguments, which have no dashes, come before the table set.
    """
    shared = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if each.default is MISSING else each.default,
            annotation=_SHOWN[each.name],
        )
        for each in fields(RequestOptions)
    ]
    own = [each for each in _parameters(command) if each.name != "options"]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
        from neuroshard_dlrm.settings import parse_settings

        given = {each.name: values.pop(each.name) for each in shared}
        given["set"] = parse_settings(given["set"] or ())
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
