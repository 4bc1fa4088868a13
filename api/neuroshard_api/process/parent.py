"""The end of a process with its parent: one that is killed ends nothing that it started."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Let this process of `multiprocessing` end once the process that asked for it is gone, also where that was killed.

    Its parent by number may be a server, which lives on.
    """
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
