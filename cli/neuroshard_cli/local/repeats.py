"""Repeats of lists within sessions, measured before a job is planned, as `neuroshard stats --session --time` does."""

from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_cli.local.directory import RunDirectory
from neuroshard_cli.local.inputs import data_files, digest, versions
from neuroshard_cli.local.progress_view import RunView
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.spec import Spec
    from neuroshard_api.job.training import Data
    from neuroshard_api.job.training_job import DLRMTrainingJob

STAGE = "measure"
_SHOWN_NAMES = 4


def wants_repeats(job: "DLRMTrainingJob", tables: "TableSet") -> bool:
    """Return whether a job's plan depends on repeats that its tables do not tell, and Parquet files do."""
    from neuroshard_api.job.plan_request import reads_sessions
    from neuroshard_api.job.training import DataFormat

    is_parquet = job.spec.data.format is DataFormat.PARQUET
    return is_parquet and reads_sessions(job) and not tables.has_duplication_factors


def measured_repeats(
    spec: "Spec", tables: "TableSet", directory: RunDirectory, view: RunView, *, root: Path
) -> "TableSet":
    """Return tables with the duplication factors of the training data, of this run or an earlier one of the folder.

    Where they cannot be measured, the tables stay as they are, and the reason is shown.

    Args:
        spec: of the job, with a session column.
        tables: without factors.
        directory: keeps the tables with their factors.
        view: shows the factors.
        root: where relative paths of the data begin.
    """
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.process.errors import DataError, MissingPackageError, StorageError

    data, run = spec.data, spec.experimental.data.session_run
    assert data.path is not None, "the job was checked when it was read"
    paths = [path for path in (data.path, data.evaluation_path) if path is not None]
    columns = [str(data.session_column), str(data.time_column), str(run)]
    files = [line for path in paths for line in data_files(root, path)]
    inputs = digest([tables.to_json(), *paths, *columns, *files, *versions()])
    if directory.is_finished(STAGE, inputs):
        found = TableSet.read(directory.tables_file)
        view.end(STAGE, "reused", _summary(found))
        return found
    view.begin(STAGE, "counting lists that repeat in sessions")
    try:
        found = _measured(data, tables, root=root, session_run=run)
    except (DataError, MissingPackageError, StorageError) as error:
        view.end(STAGE, "failed", f"{error}; the plan is for batches with all repeated lists")
        return tables
    write_file(directory.tables_file, found.to_json())
    directory.finish(STAGE, inputs, [directory.tables_file])
    view.end(STAGE, "done", _summary(found))
    return found


def _measured(data: "Data", tables: "TableSet", *, root: Path, session_run: int) -> "TableSet":
    from neuroshard_profiler.sessions.engine import EngineSettings
    from neuroshard_profiler.sessions.groups import measure_duplication
    from neuroshard_trainer.data.formats import files_of

    assert data.path is not None, "as above"
    assert data.session_column is not None, "the caller looked"
    features = dict.fromkeys(name for table in tables.tables for name in table.features)
    duplication = measure_duplication(
        files_of(data, data.path, root, leave_out=data.evaluation_path),
        tuple(features),
        session=data.session_column,
        time=data.time_column,
        session_run=session_run,
        settings=EngineSettings(),
    )
    return duplication.of_tables(tables)


def _summary(tables: "TableSet") -> str:
    """Return the factors in one line, those of a group together."""
    order = f"in runs of up to {tables.session_run}" if tables.session_run else "in whole sessions"
    shown = []
    for group in tables.duplication_groups:
        members = [table for table in tables.tables if table.duplication_group == group]
        names = ", ".join(table.name for table in members[:_SHOWN_NAMES])
        more = f", and {len(members) - _SHOWN_NAMES} more" if len(members) > _SHOWN_NAMES else ""
        shown.append(f"{names}{more} {members[0].duplication_factor:.2f}")
    others = [table.duplication_factor or 1.0 for table in tables.tables if table.duplication_group is None]
    if others:
        shown.append(f"{len(others)} without a group at most {max(others):.2f}")
    return f"samples per distinct list {order}: {'; '.join(shown)}"
