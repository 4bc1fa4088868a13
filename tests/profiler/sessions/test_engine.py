"""Specification of the choice of an engine; each engine has a file of its own."""

import sys
from pathlib import Path

import pytest
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_profiler.errors import SettingsError
from neuroshard_profiler.sessions.engine import EngineKind, EngineSettings
from neuroshard_profiler.sessions.open_engine import engine
from neuroshard_profiler.sessions.spark_engine import check_java


@pytest.mark.parametrize(("kind", "package", "extra"), [("duckdb", "duckdb", "sessions"), ("spark", "py4j", "spark")])
def test_a_missing_engine_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, package: str, extra: str
) -> None:
    """No image has one."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.protocol", None)

    with (
        pytest.raises(MissingPackageError, match=rf"needs the package {package}.*pip install '\.\[{extra}\]'"),
        engine(EngineSettings(kind=EngineKind(kind)), spill_to=None, log="a log"),
    ):
        pass


def test_spark_takes_no_memory_limit() -> None:
    """Its memory is set where its processes start."""
    settings = EngineSettings(kind=EngineKind.SPARK, memory_mib=512)

    with (
        pytest.raises(SettingsError, match=r"--memory-mib: limits DuckDB's memory.*; hint: set spark\.driver\.memory"),
        engine(settings, spill_to=None, log="a log"),
    ):
        pass


def test_spark_without_java_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME goes before the path."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(MissingPackageError, match=r"needs Java, which was not found; hint: install Java 17 or later"):
        check_java()
