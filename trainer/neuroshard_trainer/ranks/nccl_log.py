"""The network that NCCL chose, read from its own log: it falls back to TCP sockets without an error."""

import logging
import os
import re
from pathlib import Path

logger = logging.getLogger(__name__)

_USING = re.compile(r"NET/(?P<transport>\w+)\s*: Using\s*(?P<interfaces>[^;\n]*)")
"""The line of NCCL's INIT and NET subsystems, as libnccl 2.27 to 2.30 print it."""
_INTERFACE = re.compile(r"\[\d+\](?P<name>[^:\s]+)")
SLOW_TRANSPORT = "Socket"


def log_to(folder: Path, *, rank: int) -> Path | None:
    """Have NCCL log its choice of network to a file of this process; call it before NCCL is set up.

    Returns:
        The file. None where NCCL_DEBUG is set: its log belongs to the one who set it.
    """
    if "NCCL_DEBUG" in os.environ:
        return None
    file = folder / f"nccl-rank-{rank}.log"
    os.environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(file)})
    return file


def transport(log: str) -> tuple[str, tuple[str, ...]] | None:
    """Return the transport between nodes and its interfaces, such as ``("IB", ("mlx5_0",))``; None: not in the log."""
    found = _USING.search(log)
    if found is None:
        return None
    return found["transport"], tuple(match["name"] for match in _INTERFACE.finditer(found["interfaces"]))


def nccl_warning(file: Path | None, *, num_nodes: int) -> str | None:
    """Log the transport that NCCL wrote to a file; return a warning where it is slow for the plan's nodes."""
    found = transport(file.read_text(encoding="utf-8", errors="replace")) if file and file.exists() else None
    if found is None:
        return None
    name, interfaces = found
    line = f"NCCL sends between nodes over {name} ({', '.join(interfaces)})"
    if name == SLOW_TRANSPORT and num_nodes > 1:
        return f"{line}: TCP takes ten times as long as RDMA, see docs/guides/fast-network.md"
    logger.info("%s", line)
    return None
