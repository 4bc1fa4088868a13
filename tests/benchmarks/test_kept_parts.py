"""Benchmarks in parts that end between two, and go on later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kept_parts import KeptParts


def test_a_part_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run whose time is over begins no part and says how to go on; the next one measures what lacks, in order."""
    calls: list[str] = []

    def part(name: str) -> Callable[[], Any]:
        def measure() -> dict[str, str]:
            calls.append(name)
            return {"of": name}

        return measure

    assert KeptParts(tmp_path).measured({"two": part("two")}) == {"two": {"of": "two"}}
    parts = {name: part(name) for name in ("one", "two")}
    assert KeptParts(tmp_path, minutes=0).measured(parts) is None
    assert "1 of 2 parts are measured; run the same command again to resume" in capsys.readouterr().out
    assert KeptParts(tmp_path).measured(parts) == {"one": {"of": "one"}, "two": {"of": "two"}}
    assert calls == ["two", "one"]
