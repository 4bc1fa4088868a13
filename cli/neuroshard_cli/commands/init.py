"""``neuroshard init``: a whole job from data."""

from collections.abc import Mapping
from typing import Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_profiler.commands import DataFormatOption, EmbeddingDim, Feature, Ignore, MaxSamples, Session

from neuroshard_cli.shared.output import print_document


def init(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA...",
            help="The training data, as in spec.data.path: a file, a folder, a pattern, or a URL; or the files of a "
            "pattern, where the shell expanded it.",
        ),
    ],
    *,
    embedding_dim: EmbeddingDim,
    label: Annotated[
        str | None, typer.Option(help="Column of the label, 0 or 1. Default: the column label. Criteo's is known.")
    ] = None,
    dense: Annotated[
        list[str] | None,
        typer.Option(
            help="A column of integers that is a dense feature; may be repeated. Default: none; fractions are dense."
        ),
    ] = None,
    feature: Feature = None,
    ignore: Ignore = None,
    session: Session = None,
    time: Annotated[
        str | None, typer.Option(help="Column that orders the samples of a session. Default: their stored order.")
    ] = None,
    data_format: DataFormatOption = None,
    max_samples: MaxSamples = None,
) -> None:
    """Write a job for your data to stdout: `validate`, `plan`, `run`, and `kubectl apply` take it.

    All of the data is read once, as training will read it; what training would refuse is an error here.
    """
    from pathlib import Path

    from neuroshard_api.job.training import DataFormat
    from neuroshard_profiler.data.data_set import DataSet
    from neuroshard_profiler.data.sample import SampleSettings, read_sample

    from neuroshard_cli.shared.new_job import JobData, job_text, pattern_of

    if time is not None and session is None:
        raise CommandError("--time: orders the samples of a session; hint: give --session too, or leave --time out")
    place = pattern_of(data)
    opened = DataSet.of(
        place,
        data_format=DataFormat(data_format) if data_format else None,
        features=feature or (),
        session=session,
        time=time,
        label=label,
        ignored=ignore or (),
        dense=dense or (),
        setting="DATA",
    )
    log = JobData.of(opened, place)
    log.require_readable(root=Path())
    sample = read_sample(opened, place, SampleSettings(max_samples=max_samples), numbers=log.numbers, is_silent=False)
    log.numbers.require_labels(place)
    options = {
        "--label": label,
        "--embedding-dim": embedding_dim,
        "--dense": dense,
        "--feature": feature,
        "--ignore": ignore,
        "--session": session,
        "--time": time,
        "--format": data_format,
        "--max-samples": max_samples,
    }
    print_document(job_text(log, sample, embedding_dim=embedding_dim, command=["init", place, *_given(options)]))
    if log.passed_over:
        say(f"passed over: {log.passed_over}")
    for doubt in sample.doubts:
        say(doubt)


def _given(options: Mapping[str, object]) -> list[str]:
    """Return options as words of a command line, those that were left out left out."""
    pairs = [
        (name, value)
        for name, values in options.items()
        for value in (values if isinstance(values, list) else [values])
    ]
    return [word for name, value in pairs if value is not None for word in (name, str(value))]
