"""``neuroshard evaluate``: metrics of an exported model on data, on this machine."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.shared.output import ResultFile, check_writable, deliver, print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption

if TYPE_CHECKING:
    from neuroshard_api.documents.model_evaluation import ModelEvaluation


QUANTIZED_FILE = "quantized.pt"


def evaluate(
    export: Annotated[
        Path,
        typer.Argument(
            metavar="EXPORT", help="Folder of `python -m neuroshard_trainer.export`, or quantized.pt in it."
        ),
    ],
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="Samples with labels: a file, a folder, a pattern, or a URL.")
    ],
    max_samples: Annotated[int | None, typer.Option(min=1, help="Maximum samples. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the metrics (JSON).")] = None,
    json: JsonOption = False,
) -> None:
    """Compute loss, normalized entropy, AUC, and calibration of an exported model.

    Raw data is read and preprocessed as in training. The model computes on the CPU of this machine.
    """
    from neuroshard_api.job.exported_model import ExportedModel
    from neuroshard_report.terminal.model_evaluation import render_model_evaluation

    if out is not None:
        check_writable(out)
    quantized = export.name == QUANTIZED_FILE
    folder = export.parent if quantized else export
    description = ExportedModel.read(folder / "model.json")  # before the imports that take seconds
    if quantized and description.quantized_type is None:
        raise CommandError(f"{folder}: has no {QUANTIZED_FILE}; hint: export with --quantized INT8")
    found = _trainer()(folder, data, quantized=quantized, max_samples=max_samples)

    def show() -> None:
        if json:
            print_document(found.to_json())
        else:
            print_text(render_model_evaluation(found))

    deliver(show, ResultFile("metrics", out, found.to_json), says=not json)


def _trainer() -> "Callable[..., ModelEvaluation]":
    """Import the evaluation. Raises MissingPackageError."""
    from neuroshard_trainer.errors import missing_torchrec

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch and torchrec: nothing that users can fix
            from neuroshard_trainer.evaluate import evaluate
    except (ImportError, OSError) as error:
        raise missing_torchrec(error) from error
    return evaluate
