"""Lists that are declared constant in a session: the engine compares them over a whole log, across files."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from neuroshard_api.process.errors import DataError
from neuroshard_trainer.data.repeats import changed_list, listed

from neuroshard_profiler.sessions.changes import ordered_samples
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.log import SessionLog
from neuroshard_profiler.sessions.open_engine import engine

OPTION = "--constant"


def require_constant(log: SessionLog, features: Sequence[str], *, settings: EngineSettings) -> None:
    """Do nothing if the lists of every feature are equal for all samples of a session.

    Args:
        log: the files.
        features: columns of integers or of lists of integers; a null list equals an empty one.
        settings: of the engine that compares.

    Raises:
        DataError: a list changes, or is missing; rows have no session or time, or a file is damaged.
        MissingPackageError, SettingsError, StorageError: as the engine.
    """
    if not features:
        return
    if log.distinct:
        raise DataError(f"{log.title}: has each list once; hint: give {OPTION} with the log that it was clustered from")
    for name in features:
        if name not in log.schema.names:
            raise DataError(
                f"{log.title}: column {name!r}: is missing; hint: give {OPTION} one of {', '.join(log.schema.names)}"
            )
    with engine(settings, spill_to=None, log=log.title) as opened:
        rows = ordered_samples(opened, log, features)
        for index, name in enumerate(features):
            found = opened.fetch(
                f"""
                SELECT session, file, row_number, file_before, row_before, f{index}, before{index}
                FROM ({rows}) AS ordered
                WHERE place > 0 AND f{index} IS DISTINCT FROM before{index}
                ORDER BY file, row_number
                LIMIT 1
                """  # noqa: S608 - names are quoted, and the database holds nothing but the log
            )
            for session, file, row, file_before, row_before, ids, ids_before in found:
                place_before = (
                    f"row {row_before}" if file == file_before else f"{_path(file_before, log)} row {row_before}"
                )
                raise DataError(
                    changed_list(
                        name,
                        session,
                        place=f"{_path(file, log)} row {row}",
                        place_before=place_before,
                        found=listed(_ids(ids)),
                        found_before=listed(_ids(ids_before)),
                        setting=OPTION,
                    )
                )


def _path(file: str, log: SessionLog) -> str:
    """Return the path of a file as the log has it; Spark calls a file by the URL of its absolute path."""
    if not file.startswith("file:"):
        return file
    absolute = Path(unquote(urlsplit(file).path))
    return str(next((path for path in log.paths if path.resolve() == absolute), absolute))


def _ids(value: int | Sequence[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
