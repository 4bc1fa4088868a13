"""The options of commands that read the tables of a TorchRec module."""

from typing import Annotated

import typer

ModuleOption = Annotated[
    str | None,
    typer.Option(
        metavar="PACKAGE.MODULE:FUNCTION",
        help="A function that returns a TorchRec module, or (module, batches): its tables.",
    ),
]
BatchesOption = Annotated[int, typer.Option(min=0, help="Batches of --module that are read at most.")]
