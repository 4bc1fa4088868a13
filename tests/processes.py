"""What tests ask of other processes."""

import psutil


def has_ended(pid: int) -> bool:
    """Tell whether a process runs no more; one that nobody has asked for its status may still be in the table."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
