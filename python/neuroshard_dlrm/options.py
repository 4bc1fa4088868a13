"""What is planned, on which devices, and within which limits, as plain values. Imports nothing that takes time."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuroshard_api.documents.request import Constraints
    from neuroshard_api.documents.topology import Topology

DEFAULT_BATCHES = 10
"""Maximum number of batches of a module that are read."""
MOST_DEVICES = 4096
"""That a plan is priced on for a user who compares numbers of devices, or divides them."""
BATCH_PLACEHOLDER = "{batch}"
"""In the path of a counted dense part: samples per device."""
_FUNCTION = re.compile(r"[\w.]+:\w+")


def names_function(name: str) -> bool:
    """Return whether a word is a function, as ``package.module:function``, and not a file."""
    return _FUNCTION.fullmatch(name) is not None and not Path(name).exists()


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Options of what is planned; the help of ``neuroshard plan`` has the meaning of each."""

    tables: str | None = None
    devices: "int | str | Path | Topology | None" = None
    """Devices in all nodes; nodes and devices of each, as ``2x8``; or a topology, or its file."""
    device_type: str | None = None
    batch_size: int | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    constraints: "Path | Constraints | None" = None
    dense: Path | None = None
    servers: str | None = None
    """Embedding servers, as ``2x192GiB`` (see `neuroshard_dlrm.servers`)."""
    bundle: Path | None = None

    def dense_path(self, batch_size: int) -> Path:
        """Return the file of the dense part that was counted for a number of samples per device."""
        return Path(str(self.dense).replace(BATCH_PLACEHOLDER, str(batch_size)))

    def given(self) -> list[str]:
        """Return the names of the options that are given, in their order."""
        values = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return [name for name, value in values if value is not None and value is not False and value != {}]
