"""A job that its file suspends: nothing runs until the file is changed, as with a job in a cluster."""

import time
from collections.abc import Callable
from pathlib import Path

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.job_file import JobFile, read_job_file
from neuroshard_api.process.hints import say

LOOK_EVERY_S = 1.0


def resumed_job(path: Path, *, wait: Callable[[float], None] = time.sleep) -> JobFile:
    """Return the job of a file, once it is not suspended; other changes that were made until then count too.

    A file that cannot be read meanwhile is waited for: it may be half written.

    Args:
        path: of the file.
        wait: sleeps for some seconds.

    Raises:
        DocumentError: the file does not hold one job when the command begins.
    """
    found = read_job_file(path)
    if found.job.spec.suspend:
        say(f"suspended: spec.suspend is true; the run begins once {path} says false")
    last = ""
    while found.job.spec.suspend:
        wait(LOOK_EVERY_S)
        try:
            found = read_job_file(path)
        except DocumentError as error:
            if str(error) != last:
                say(f"suspended: {error}")
            last = str(error)
    return found
