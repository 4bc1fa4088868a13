"""Files that appear whole or not at all: a reader sees the old text or the new."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file in place of what was there; a failure leaves that as it was.

    A link stays a link to the new file. A special file, such as /dev/null, is written to and never replaced.

    Raises:
        OSError: it could not be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
