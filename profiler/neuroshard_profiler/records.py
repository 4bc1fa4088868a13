"""A records file that grows: every finished sample is written before the next begins. Judges no times."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from neuroshard_api.documents.records import ProfileRecord
from neuroshard_costs.errors import RecordsError
from neuroshard_costs.fitting.records import ended_records

from neuroshard_profiler.errors import DeviceFailedError, DeviceLostError, UnusableSampleError
from neuroshard_profiler.files import make_folder

METHOD = 4
"""Version of the way of measuring. 2: on a CPU as many cores measure at once as the job has processes, whole tables and
cold caches. 3: gradients of repeated lists are summed over all features of a group at once. 4: on a GPU, caches are
emptied by reading, late starts last as long as they say, and records say what disturbed them. A change after which
times do not compare with earlier ones takes the next number."""


class RecordsFile:
    """Appends records of one machine; an existing file is continued.

    A process that is killed leaves at most one incomplete last line, which the next one removes. Broken lines
    elsewhere are errors: something else wrote to the file.
    """

    def __init__(self, path: Path, *, source: str) -> None:
        """Open or continue a file.

        Raises:
            SettingsError: there can be no file here.
            RecordsError: a complete line is broken, or the records are another machine's or were measured otherwise.
        """
        self.path = path
        make_folder(path.parent)
        found, num_bytes = ended_records(path) if path.exists() else ((), 0)
        others = sorted({record.source for record in found} - {source})
        if others:
            raise RecordsError(
                f"{path}: holds records of {', '.join(others)}, this machine's are {source}; hint: give another folder"
            )
        _require_method(path, found)
        self._records = list(found)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        os.ftruncate(self._descriptor, num_bytes)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    @property
    def records(self) -> tuple[ProfileRecord, ...]:
        """All records of the file, those of samples that ran out of memory too."""
        return tuple(self._records)

    @property
    def elapsed_seconds(self) -> float:
        """Time that was spent on these records; 0 where none of them says it."""
        return max((record.elapsed_seconds or 0.0 for record in self._records), default=0.0)

    def append(self, record: ProfileRecord) -> None:
        """Write one record in one piece, so that a kill of this process loses at most the sample in flight."""
        own = record.model_copy(update={"method": METHOD})
        line = own.model_dump_json(exclude_none=True) + "\n"
        os.write(self._descriptor, line.encode())
        self._records.append(own)

    @contextmanager
    def appended(self, record: ProfileRecord) -> Iterator[dict[str, object]]:
        """Append a record with the fields that the caller measures, or with the reason that its sample is unusable.

        Raises DeviceFailedError where the device is lost with it; the sample is recorded, so that another one goes on.
        """
        measured: dict[str, object] = {}
        lost = False
        try:
            yield measured
        except UnusableSampleError as error:
            measured = {"failure": str(error) or type(error).__name__}
            lost = isinstance(error, DeviceLostError)
        self.append(record.model_copy(update=measured))
        if lost:
            raise DeviceFailedError(record.source, str(measured["failure"]))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def require_own_method(folder: Path) -> None:
    """Raise RecordsError where a records file of a folder was measured in another way than this profiler's.

    All records of a folder are fitted together, also those of files that this run does not continue.
    """
    for path in sorted(folder.glob("*.jsonl")):
        found, _ = ended_records(path)
        _require_method(path, found)


def _require_method(path: Path, records: Sequence[ProfileRecord]) -> None:
    other = next((record.method for record in records if record.method != METHOD), None)
    if other is not None:
        raise RecordsError(
            f"{path}: holds records of measuring method {other}, this release measures by method {METHOD}, and their "
            "times do not compare; hint: give another folder, or remove the records"
        )
