"""What a log was clustered from, and what came out: the report in the folder of clustered files."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.document import Document, Value

MAX_INTEGER = 2**63 - 1
"""What 64 bits hold."""


class LogFile(Value):
    """A file of the log, as it was when the clustering began."""

    path: str
    size_bytes: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    modified_ns: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
    """Time of the last change in nanoseconds since 1970."""


class ClusteringRequest(Value):
    """All that decides the bytes of the clustered files."""

    files: Annotated[tuple[LogFile, ...], Field(min_length=1)]
    session_column: str
    time_column: str
    window_width: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    """Microseconds where time is a timestamp, else units of the time column."""
    row_group_rows: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    """Maximum rows of a row group."""
    all_lists: bool = False
    """Whether every row has its lists, and not once those that rows next to each other share."""


class ClusteredWindow(Value):
    """One file: the samples of one window of time."""

    file: str
    """Name in the report's folder."""
    start: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
    """First time of the window, in the unit of window_width; timestamps count from 1970."""
    num_samples: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    num_sessions: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    """A session that an edge cuts counts in both windows."""


class ClusteredColumn(Value):
    """Compressed bytes of a column over all files."""

    name: str
    bytes_before: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    bytes_after: Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class SessionClustering(Document):
    """``clustering.json`` next to the files of ``neuroshard cluster-sessions``. Without columns it is unfinished."""

    schema_name: ClassVar[str] = "session-clustering/v1"

    schema_version: Literal["session-clustering/v1"] = "session-clustering/v1"
    request: ClusteringRequest
    windows: tuple[ClusteredWindow, ...] = ()
    """In the order of time."""
    columns: tuple[ClusteredColumn, ...] = ()
    """In the order of the schema. Empty: the clustering was interrupted."""
