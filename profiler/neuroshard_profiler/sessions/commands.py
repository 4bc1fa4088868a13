"""The command ``cluster-sessions`` and its options. Importing this loads nothing heavy."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from neuroshard_api.process.printable import printable

EngineChoice = Literal["duckdb", "spark"]
Engine = Annotated[
    EngineChoice, typer.Option(help="What orders samples: DuckDB on this machine, or Spark, also on a cluster.")
]
MemoryMib = Annotated[
    int | None,
    typer.Option(
        min=64, max=2**30, help="Memory limit of DuckDB, which spills what does not fit to disk. Default: 512."
    ),
]


def cluster_sessions(
    log: Annotated[list[Path], typer.Argument(metavar="LOG...", help="Parquet files, or folders of them.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the clustered files and of clustering.json.")],
    session: Annotated[str, typer.Option(help="Column that tells which samples are of one session.")],
    time: Annotated[str, typer.Option(help="Column that orders samples: timestamps or integers.")],
    window: Annotated[
        str | None,
        typer.Option(help="Time that is clustered together: 1d, 6h, or a number for integers. Default: 1d."),
    ] = None,
    row_group_rows: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Maximum rows of a row group.")] = 65536,
    all_lists: Annotated[
        bool,
        typer.Option(
            "--all-lists",
            help="Keep every row's lists, for readers other than NeuroShard's. Default: one for rows that share it.",
        ),
    ] = False,
    engine: Engine = "duckdb",
    memory_mib: MemoryMib = None,
) -> None:
    """Rewrite a log with the samples of a session together.

    The same command continues a run that was interrupted.
    """
    from neuroshard_report.terminal.printing import print_content

    from neuroshard_profiler.sessions.clustering import ClusteringSettings
    from neuroshard_profiler.sessions.clustering import cluster_sessions as clustered
    from neuroshard_profiler.sessions.clustering_text import render_clustering
    from neuroshard_profiler.sessions.engine import EngineKind, EngineSettings
    from neuroshard_profiler.sessions.log import open_log
    from neuroshard_profiler.sessions.windows import parse_windows

    opened = open_log(log, session=session, time=time)
    report = clustered(
        opened,
        parse_windows(opened, window),
        ClusteringSettings(
            out=out,
            row_group_rows=row_group_rows,
            engine=EngineSettings(kind=EngineKind(engine), memory_mib=memory_mib),
            all_lists=all_lists,
        ),
        progress=_say,
    )
    print_content(render_clustering(report))


def _say(sentence: str) -> None:
    sys.stderr.write(f"{printable(sentence)}\n")
