import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from neuroshard_cli.command_list import ENTRIES, CommandEntry
from neuroshard_cli.main import run
from neuroshard_cli.shared.earlier_options import EARLIER_OPTIONS
from support.cli.searches import quick

COMMAND = (sys.executable, "-c", "from neuroshard_cli.main import main; main()")


def _process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=100, **settings)  # type: ignore[call-overload,no-any-return]


def test_version_is_the_distributions(neuroshard: Callable[..., Any]) -> None:
    """It is asked for in every report of a bug."""
    result = neuroshard("--version")

    assert (result.code, result.out) == (0, f"neuroshard {version('neuroshard-operator')}\n")


@pytest.mark.parametrize("name", ENTRIES)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first line says what it does, and every option is explained."""
    assert run([name, "--help"]) == 0
    assert f"Usage: neuroshard {name}" in capsys.readouterr().out


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_the_list_of_commands_shows_the_first_line_of_each_commands_help(entry: CommandEntry) -> None:
    """It is written down a second time, so that the list needs no import of the commands."""
    assert (entry.load().__doc__ or "").partition("\n")[0] == entry.summary


def test_help_needs_no_library_of_numbers_or_documents() -> None:
    """It answers at once: neither numpy, pydantic, rich, TLS, torch, nor a command is imported for it."""
    program = (
        "import sys\nfrom neuroshard_cli.main import run\nrun(['--help'])\n"
        "unwanted = ('numpy', 'pydantic', 'rich', 'ssl', 'torch', 'jinja2', 'neuroshard_cli.commands.plan')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)

    assert found.stdout.splitlines()[-1] == "[]"


def test_a_plan_without_a_report_imports_only_what_it_uses(tmp_path: Path) -> None:
    """A template engine would take a fifth of the start of a small plan, TLS and masked arrays a tenth.

    Its stderr is not a terminal, the one place for a display of the progress.
    """
    (tmp_path / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\na,1000,64,1\nb,9,4,2\n")
    arguments = ["plan", str(tmp_path / "tables.csv"), *quick(2)]
    program = (
        f"import sys\nfrom neuroshard_cli.main import run\nassert run({arguments!r}) == 0\n"
        "unwanted = ('torch', 'scipy', 'jinja2', 'ssl', 'numpy.ma', 'rich.progress')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)

    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--vrsion",), "did you mean --version"),
        (("plna",), "there is no command 'plna'\nhint: did you mean `neuroshard plan`"),
        (("doctor", "plna"), "there is no command 'plna'\nhint: did you mean `neuroshard plan`"),
        (("plan",), "TABLES"),
        (("explain",), "PLAN: is missing\nhint: `neuroshard explain --help`"),
        (("devices", "more"), "(more)\nhint: `neuroshard devices --help`"),
        (("plan", "t.csv", "--device", "8"), "did you mean --devices"),
        (("plan", "t.csv", "--devices", "eight"), "--devices"),
        (("plan", "t.csv", "--devices", "0"), "--devices"),
        (("export", "p.json", "--format", "lion"), "error: --format: 'lion' is not one of"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_a_sentence(neuroshard: Callable[..., Any], arguments: Sequence[str], words: str) -> None:
    """Exit code 2, nothing on stdout, and the option or command is named."""
    result = neuroshard(*arguments)

    assert result.code == 2
    assert result.out == ""
    assert words in result.err
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


def test_wrong_usage_is_json_for_machines(neuroshard: Callable[..., Any]) -> None:
    """Even an error that is found before any command runs."""
    result = neuroshard("plan", "t.csv", "--devices", "eight", "--json")

    answer = json.loads(result.err)
    assert (result.code, result.out, answer["exit_code"]) == (2, "", 2)
    assert "--devices" in answer["error"]


def test_no_arguments_show_the_help(neuroshard: Callable[..., Any]) -> None:
    """As a person who does not know the command would want."""
    result = neuroshard()

    assert (result.code, result.err) == (0, "")
    assert "Usage: neuroshard" in result.out


def test_streams_are_separate() -> None:
    """A real process: the document on stdout, nothing on stderr; the error on stderr, nothing on stdout."""
    good = _process("devices", "--json")
    bad = _process("plan", "no-such-file.json", "--devices", "8", "--device-type", "h100-80gb")

    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: no-such-file.json: does not exist")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    """As `neuroshard workloads | head -1` does."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [*COMMAND, "workloads", "--json"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=100
    )
    os.close(writer)

    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_behind_stdout_is_a_sentence() -> None:
    """As `neuroshard workloads > file` on a full disk."""
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [*COMMAND, "workloads"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100
        )

    assert found.returncode == 2
    assert re.fullmatch(r"error: stdout: cannot be written: No space left.*\nhint: .*\n", found.stderr)


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    """The command stops at once, says so in a word, and shows no traceback."""
    tables = tmp_path / "tables.csv"
    os.mkfifo(tables)
    command = [*COMMAND, "plan", str(tables), "--devices", "8", "--device-type", "h100-80gb"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        tables.open("w"),  # opens only when the command has begun to read
    ):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)

    assert process.returncode == 130
    assert err == "error: interrupted\n"


def test_output_that_the_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    """A name in Greek must not end a command in a terminal that knows ASCII only."""
    tables = tmp_path / "tables.json"
    table = {"name": "t", "num_embeddings": 100, "embedding_dim": 8}
    tables.write_text(json.dumps({"schema_version": "table-set/v1", "name": "μοντέλο", "tables": [table]}))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    found = _process("plan", str(tables), *quick(2), env=environment)

    assert (found.returncode, found.stderr) == (0, "")
    assert "???????, 1 table" in found.stdout


@pytest.mark.parametrize(
    ("command", "option"), [(command, option) for command, gone in EARLIER_OPTIONS.items() for option in gone]
)
def test_an_option_of_earlier_days_names_what_says_it_now(
    neuroshard: Callable[..., Any], command: str, option: str
) -> None:
    """The command has it no longer; options that the remedy names are those of the command."""
    result = neuroshard(command, option, "word")
    usage = neuroshard(command, "--help").out

    assert (result.code, result.out) == (2, "")
    assert f"{option}: is gone from `neuroshard {command}`; hint: " in result.err.replace("\nhint: ", "; hint: ")
    assert set(re.findall(r"--[a-z-]+", EARLIER_OPTIONS[command][option])) - {option} <= set(
        re.findall(r"--[a-z-]+", usage)
    )
    assert not re.search(rf"{option}(?![\w-])", usage)
