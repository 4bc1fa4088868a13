"""A benchmark in parts that are measured one by one and kept, so that it may end between two and go on later."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PARTS_FILE = "parts.jsonl"
SECONDS_PER_MINUTE = 60


class KeptParts:
    """The parts of one benchmark.

    Args:
        folder: takes up what each part measured, and files that parts share.
        minutes: after which no further part begins. If unset: there is no limit.
    """

    def __init__(self, folder: Path, *, minutes: float | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = folder / PARTS_FILE
        self._ends = None if minutes is None else time.monotonic() + SECONDS_PER_MINUTE * minutes

    def measured(self, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any] | None:
        """Measure the parts that are not kept yet.

        Returns:
            What each part measured, in the order of ``parts``, as JSON gives it back. None: the time was over before.
        """
        found = self._kept()
        for name, measure in parts.items():
            if name in found:
                continue
            if self._ends is not None and time.monotonic() >= self._ends:
                done = sum(each in found for each in parts)
                print(f"{done} of {len(parts)} parts are measured; run the same command again to resume")
                return None
            with self._file.open("a") as file:
                file.write(json.dumps([name, measure()]) + "\n")
            found = self._kept()
        return {name: found[name] for name in parts}

    def _kept(self) -> dict[str, Any]:
        if not self._file.exists():
            return {}
        return dict(json.loads(line) for line in self._file.read_text().splitlines())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a benchmark in parts."""
    parser.add_argument("--parts", type=Path, metavar="FOLDER", help="keeps each part; the same command goes on there")
    parser.add_argument("--minutes", type=float, help="after which no further part begins; needs --parts")


@contextmanager
def kept_parts(options: argparse.Namespace) -> Iterator[KeptParts]:
    """Give the parts that the options name; without any, those of a folder that ends with the benchmark."""
    if options.parts is not None:
        yield KeptParts(options.parts, minutes=options.minutes)
        return
    if options.minutes is not None:
        raise SystemExit("--minutes: ends a run between two parts, which --parts keeps; hint: add --parts FOLDER")
    with TemporaryDirectory() as scratch:
        yield KeptParts(Path(scratch))
