"""The options that describe what to plan, common to several commands, as typer shows them."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from neuroshard_api.process.optimizer_choice import OptimizerChoice
from neuroshard_dlrm.choices import (
    ComputePeakChoice,
    DenseCheckpointingChoice,
    DenseGroupChoice,
    DensePolicyChoice,
    DenseSplittingChoice,
    OutputTypeChoice,
    PipelineChoice,
)
from neuroshard_dlrm.options import RequestOptions
from typer.models import ArgumentInfo

from neuroshard_cli.shared.module_option import BatchesOption, ModuleOption

_SHOWN: Mapping[str, Any] = {
    "tables": Annotated[
        str | None,
        typer.Argument(
            metavar="TABLES",
            help="A table set (YAML, JSON, CSV), a job, request, or plan file, or a name of `neuroshard workloads`.",
        ),
    ],
    "module": ModuleOption,
    "batches": BatchesOption,
    "devices": Annotated[int | None, typer.Option(min=1, help="Devices in all nodes.")],
    "nodes": Annotated[
        int | None, typer.Option(min=1, help="Nodes they stand in. Default: as many as the device type usually fills.")
    ],
    "device_type": Annotated[str | None, typer.Option(help="A device of `neuroshard devices`.")],
    "topology": Annotated[
        Path | None, typer.Option(help="Devices described by a topology file, instead of the three options above.")
    ],
    "bundle": Annotated[
        Path | None, typer.Option(help="Directory of cost models. Default: the bundled ones of the device type.")
    ],
    "any_device": Annotated[
        bool, typer.Option("--any-device", help="Plan with cost models of another device; the plan warns of it.")
    ],
    "batch_size": Annotated[
        int | None,
        typer.Option(min=1, max=2**24, help="Samples per device and step. Default: the table set's, else 8192."),
    ],
    "optimizer": Annotated[
        OptimizerChoice | None, typer.Option(help="Default: the table set's, else rowwise_adagrad.")
    ],
    "output_data_type": Annotated[
        OutputTypeChoice, typer.Option(help="Type of pooled embeddings and their gradients.")
    ],
    "wire_forward": Annotated[
        str | None,
        typer.Option(
            help="Types in which pooled embeddings may travel where that shortens the step, such as FP16,INT8, besides "
            "FP32. Default: none."
        ),
    ],
    "wire_backward": Annotated[
        str | None, typer.Option(help="The same for their gradients, such as FP16. Default: none.")
    ],
    "least_gain": Annotated[
        float | None,
        typer.Option(
            min=0,
            max=100,
            help="Percent of a step that such types must save. Default: 2, or the cost models' error if that is more.",
        ),
    ],
    "gradient_types": Annotated[
        str | None,
        typer.Option(
            help="Types in which gradients of replicated units of --dense may travel where that shortens the step, "
            "such as BF16,Threshold, besides FP32. Default: none."
        ),
    ],
    "keep_percent": Annotated[
        float | None, typer.Option(min=0, max=50, help="Threshold: percent of the gradients that are sent. Default: 5.")
    ],
    "data_types": Annotated[
        str | None,
        typer.Option(
            help="Types that tables may be stored in where that fits or is faster, such as FP32,FP16; changes results. "
            "Default: each table's own."
        ),
    ],
    "pipeline": Annotated[PipelineChoice, typer.Option(help="How the trainer overlaps its steps.")],
    "compute_peak": Annotated[
        ComputePeakChoice, typer.Option(help="Wait for the slowest of each pass, or of both joint.")
    ],
    "deduplicate": Annotated[
        bool, typer.Option("--deduplicate", help="Let the plan leave out lists that repeat within sessions.")
    ],
    "constraints": Annotated[Path | None, typer.Option(help="A constraints file.")],
    "max_memory": Annotated[
        str | None, typer.Option(help="Most memory of a device, such as 70GiB. Default: all it has.")
    ],
    "host_memory": Annotated[
        str | None,
        typer.Option(
            help="Memory of each node that tables may take, such as 1TiB, unless the constraints name kernels. "
            "Default: none."
        ),
    ],
    "group_sizes": Annotated[
        str | None,
        typer.Option(
            help="Let groups of devices each hold all tables, by sizes such as 8,16, or auto: all sizes. Default: none."
        ),
    ],
    "sync_every": Annotated[
        int, typer.Option(min=1, help="Steps between averages of the groups' tables, with --group-sizes.")
    ],
    "dense": Annotated[
        Path | None,
        typer.Option(
            help="The dense part as `python -m neuroshard_trainer.dense_profile` counted it; {batch} in the path is "
            "the batch size."
        ),
    ],
    "dense_memory": Annotated[
        str | None,
        typer.Option(
            help="Memory of the dense part on each device, if it was not counted. Default: --module's, else 0."
        ),
    ],
    "dense_policy": Annotated[
        DensePolicyChoice, typer.Option(help="Whether units of --dense may be, or are, sharded over devices.")
    ],
    "dense_group": Annotated[
        DenseGroupChoice, typer.Option(help="Devices that share a unit: those of a node, or all.")
    ],
    "dense_checkpointing": Annotated[
        DenseCheckpointingChoice, typer.Option(help="Whether activations are computed again in the backward pass.")
    ],
    "dense_splitting": Annotated[
        DenseSplittingChoice,
        typer.Option(help="Whether zero3 gathers operators of a unit, such as its layers, one after the other."),
    ],
    "dense_units": Annotated[
        str | None,
        typer.Option(
            help="Units with a strategy of their own, such as interaction=zero3,over_arch=replicate. Default: none."
        ),
    ],
    "reserve": Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.99,
            help="Share of a device's memory that is kept free. Default: 2.5 GiB and a share of what a step allocates.",
        ),
    ],
    "reserve_memory": Annotated[str, typer.Option(help="Memory of a device that is kept free besides.")],
    "seed": Annotated[int, typer.Option(min=0, help="Equal seeds give equal plans.")],
    "work_budget": Annotated[
        int | None, typer.Option(min=1, help="Most evaluations of a device's cost. Default: grows with the tables.")
    ],
    "shard_tolerance": Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the predicted cost given up for fewer shards; 0: none.")
    ],
}
"""Type and help of each option, by its name."""


def takes_request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the parameters of RequestOptions; it receives them as its one argument ``options``.

    The command's own arguments, which have no dashes, come before the table set.
    """
    names = [field.name for field in fields(RequestOptions)]
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=_SHOWN[each.name])
        for each in fields(RequestOptions)
    ]
    own = [each for each in _parameters(command) if each.name != "options"]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:  # noqa: ANN401 - what typer parsed by the signature below
        options = RequestOptions(**{name: values.pop(name) for name in names})
        command(options=options, **values)

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
