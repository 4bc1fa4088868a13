"""Log lines: one JSON object each, with namespace, job, stage and attempt where they are known."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from neuroshard_api.process.printable import printable

FIELDS = ("namespace", "job", "stage", "reason", "attempt")
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        said: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class TextFormatter(logging.Formatter):
    """A record as people read it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, its control characters shown."""
        return printable(super().format(record))


def about(namespace: str, job: str, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a log line about a job, next to its message; `status` is the job's in the API server."""
    return {"namespace": namespace, "job": job, "stage": status.get("stage"), "attempt": status.get("restarts")}


def configure_logs(*, level: str, as_json: bool) -> None:
    """Write all log lines of a level and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Kopf tells of every object it meets; what matters of that is told by us.
    logging.getLogger("kopf").setLevel(max(logging.getLevelName(level), logging.WARNING))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
