"""A wrong value of any option of any command is the user's to correct: exit code 2 and a sentence, never a traceback.

The commands are walked, so that a further option is tested without a change here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_origin

import pyarrow as pa
import pytest
import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_cli.command_list import ENTRIES
from neuroshard_cli.main import app, run
from pyarrow import parquet
from support.cli.local_runs import made_plan

PLAN = (
    "tables.csv",
    "--devices",
    "2",
    "--device-type",
    "h100-80gb",
    "--set",
    "spec.experimental.planner.workBudget=100",
)
SIMULATED = ("--set", "spec.profiler.backend=Simulated", "--set", "spec.profiler.deviceType=h100-80gb")
LOG = ("log.parquet", "--session", "session", "--time", "time")
VALID = {
    "plan": PLAN,
    "compare": PLAN,
    "score": ("mine.json",),
    "explain": ("mine.json",),
    "report": ("mine.json", "--out", "report.html"),
    "export": ("mine.json",),
    "stats": ("log.parquet", "--embedding-dim", "16"),
    "init": ("log.parquet", "--embedding-dim", "16", "--dense", "time"),
    "cluster-sessions": (*LOG, "--out", "out", "--window", "5"),
    "profile": (*SIMULATED, "--out", "profile", "--budget", "1s"),
}
"""Arguments with which a command would succeed. Other commands are given no more than the option."""
PLACES = {"--out", "--run-dir"}
"""Options for which every word is the name of a file or folder that may be written."""
FREE = {("export", "--module-path")}
"""Options that take every text."""
UNUSABLE_MODELS = {"--bundle"}
"""Have an exit code for themselves, which retries depend on."""


def invalid(name: str, option: Any) -> Iterator[str]:
    """Yield values that an option must refuse."""
    kind = option.type_descriptor.annotation
    if kind in {int, float}:
        yield from ("x", "", "-1" if option.min is None else f"{option.min - 1}")
        if option.max is not None:
            yield f"{option.max + 1}"
        elif kind is int and name == "stats" and option.name != "max_samples":
            yield f"{10**20}"
    elif get_origin(kind) is Literal:
        yield from ("other", "")
    elif name in VALID and (name, option.opts[0]) not in FREE:
        yield from ("/dev/null/file",) if option.opts[0] in PLACES else ("", "other", "/dev/null/file")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with tables, a plan, and a log."""
    made_plan(tmp_path)
    (tmp_path / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\nuser,1000,16,1\n")
    log = {"session": [1, 1], "time": [1, 2], "item": [1, 2], "label": [0, 1]}
    parquet.write_table(pa.table(log), tmp_path / "log.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.usefixtures("folder")
def test_a_wrong_value_is_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For each option of the command; nothing is printed to stdout."""
    command: Any = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    options = [each for each in command.params if each.param_type_name == "option" and not each.is_flag]
    for option in options:
        given = list(VALID.get(name, ()))
        word = option.opts[0]
        if word in given:
            del given[given.index(word) : given.index(word) + 2]
        for value in invalid(name, option):
            code = run([name, *given, word, value])
            found = capsys.readouterr()
            expected = {ExitCode.INVALID_INPUT, *([ExitCode.UNUSABLE_BUNDLE] if word in UNUSABLE_MODELS else [])}
            assert code in expected, f"{name} {word} {value!r}: {code} {found.err}"
            assert "Traceback" not in found.err, f"{name} {word} {value!r}"
            assert "\nerror: " in f"\n{found.err}", f"{name} {word} {value!r}: {found.err}"
            assert found.out == "", f"{name} {word} {value!r}"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"item": [1]}, ("--embedding-dim", "30"), "--embedding-dim: must be a multiple of 4"),
        ({"i" * 129: [1]}, (), "no feature can have its name (found 129 characters"),
        (
            {"item": [10**13]},
            ("--id-rule", "Exact"),
            "feature 'item': its ids number no rows, expected 0 to 9,999,999,999,999 (found 10000000000000",
        ),
        ({"item": ["a"]}, ("--id-rule", "Modulo"), "feature 'item': its ids are texts, which have the id rule Hash"),
        (
            {"item": [1]},
            ("--rows-per-id", "nan"),
            "--rows-per-id: Input should be less than or equal",
        ),
    ],
    ids=["width", "long name", "id", "text", "rows"],
)
def test_data_without_a_table_set_is_a_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    """Nothing is written. Names and widths are checked before rows are read."""
    parquet.write_table(pa.table(columns), folder / "log.parquet")
    code = run(["stats", "log.parquet", "--embedding-dim", "16", *options, "--out", "tables.json"])

    assert code == ExitCode.INVALID_INPUT
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "tables.json").exists()
