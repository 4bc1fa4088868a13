"""What `neuroshard doctor` finds: packages of each command, and what does not work together."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.generations import installed_version
from neuroshard_api.process.missing_package import install_hint
from neuroshard_cli.command_list import ENTRIES
from neuroshard_cli.shared.installation import check_command, conflicts

INSTALLED = {"torch": "2.14.1", "torchrec": "1.9.2", "fbgemm-gpu": "1.9.0"}


def test_doctor_lists_every_command_and_the_versions_that_a_report_of_a_bug_needs(
    neuroshard: Callable[..., Any],
) -> None:
    """All extras are installed where the tests run, so every command is ready."""
    result = neuroshard("doctor")

    assert result.code == 0
    assert all(f"{name} " in result.out for name in ENTRIES)
    assert f"torch {installed_version('torch')}" in result.out
    assert "needs" not in result.out


def test_doctor_as_json_holds_the_same_findings(neuroshard: Callable[..., Any]) -> None:
    """A support script reads it."""
    found = json.loads(neuroshard("doctor", "--json").out)

    assert found["machine"]["packages"]["torch"] == installed_version("torch")
    assert [each["command"] for each in found["commands"]] == list(ENTRIES)


def test_doctor_of_an_unknown_command_is_refused_with_a_hint(neuroshard: Callable[..., Any]) -> None:
    """The list of commands is one option away."""
    result = neuroshard("doctor", "training")

    assert result.code == 2
    assert "'training'" in result.err
    assert "hint:" in result.err


def test_a_missing_package_is_named_with_the_extra_that_brings_it() -> None:
    """Extras name other extras: what the command's extra needs through them is missing as well."""
    check = check_command(ENTRIES["profile"], version_of=lambda name: None if name == "scipy" else "99")

    assert check.missing == ("scipy>=1.14",)
    assert check.install == "pip install '.[profiler]' in a checkout of the repository"


def test_statistics_of_a_log_need_no_torch() -> None:
    """Their extra has what reads and hashes ids."""
    absent = {"torch", "matplotlib", "pyarrow", "xxhash"}
    check = check_command(ENTRIES["stats"], version_of=lambda name: None if name in absent else "99")

    assert sorted(check.missing) == ["pyarrow>=18.0", "xxhash>=3.5"]
    assert check.install == "pip install '.[data]' in a checkout of the repository"


def test_a_package_that_is_too_old_is_named_with_the_version_found() -> None:
    """The installed version tells what to upgrade."""
    check = check_command(ENTRIES["stats"], version_of=lambda name: "17.0.0" if name == "pyarrow" else "99")

    assert check.missing == ("pyarrow>=18.0 (found 17.0.0)",)


def test_training_needs_torchrec_and_kernels_that_no_extra_brings() -> None:
    """Their versions follow torch and the device, so they are installed by name."""
    absent = {"torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu"}
    check = check_command(ENTRIES["run"], version_of=lambda name: None if name in absent else installed_version(name))

    assert check.missing == ("torchrec", "fbgemm-gpu or fbgemm-gpu-cpu")
    assert check.install is not None
    assert "--no-deps" in check.install


def test_a_command_without_an_extra_is_ready_where_nothing_else_is_installed() -> None:
    """A pod that publishes a result has the base packages alone."""
    assert check_command(ENTRIES["publish"], version_of=lambda _: None).missing == ()


@pytest.mark.parametrize(
    ("change", "cuda", "driver", "words"),
    [
        ({}, "13.0", "580.65.06", ()),
        ({}, None, None, ()),
        ({}, None, "580.65.06", ("without CUDA",)),
        ({}, "13.0", "550.54.15", ("550.54.15", "580")),
        ({"fbgemm-gpu": None, "fbgemm-gpu-cpu": "1.9.0"}, "13.0", "580.65.06", ("for CPUs",)),
        ({"fbgemm-gpu-cpu": "1.9.0"}, "13.0", "580.65.06", ("both installed",)),
        ({"torchrec": "1.8.0"}, "13.0", "580.65.06", ("torchrec 1.8.0", "needs 1.9")),
        ({"torch": "2.11.0", "fbgemm-gpu": "1.6.0"}, "13.0", "580.65.06", ("torch 2.11.0, fbgemm-gpu 1.6.0",)),
        ({"torch": None}, None, "580.65.06", ()),
    ],
    ids=[
        "fits",
        "cpu",
        "torch-cpu",
        "old-driver",
        "kernels-cpu",
        "both-kernels",
        "old-torchrec",
        "generations",
        "no-torch",
    ],
)
def test_what_does_not_work_together_is_a_problem_with_a_hint(
    change: dict[str, str | None], cuda: str | None, driver: str | None, words: tuple[str, ...]
) -> None:
    """Each of them imports, and fails or trains on the CPU later."""
    versions: dict[str, str | None] = {**INSTALLED, **change}
    found = list(conflicts(version_of=versions.get, cuda=cuda, driver=driver))

    assert len(found) == bool(words)
    assert all(word in found[0] for word in words)
    assert all("; hint: " in problem for problem in found)


def test_an_error_about_a_missing_package_installs_what_doctor_says(
    neuroshard: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra of the command, and not that of another one which needs the package too."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "log.csv").write_text("label,item\n1,3\n")
    result = neuroshard("init", tmp_path / "log.csv", "--embedding-dim", 16)

    assert result.code == ExitCode.MISSING_PACKAGE
    assert "needs the package pyarrow" in result.err
    assert f"hint: {install_hint('data')}\n" in result.err
