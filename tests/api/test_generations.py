"""Specification of releases that belong together."""

import re
import tomllib
from pathlib import Path

import pytest
from neuroshard_api.process.generations import (
    TESTED,
    TRAINER_TORCHREC,
    kernels_hint,
    mixed_generations,
    too_old_for_training,
)
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PINNED = {"torch": "2.14.1", "fbgemm-gpu": "1.9.0", "torchrec": "1.9.2"}


@pytest.mark.parametrize(
    "versions",
    [
        PINNED,
        {"torch": "2.14.0+cu130", "fbgemm-gpu-cpu": "1.9.0", "torchrec": "1.9.0"},
        {"torch": "2.13.0", "fbgemm-gpu": "1.8.0", "torchrec": "1.8.0"},
        {"torch": "2.14.0a0+git1234"},
        {"torchrec": "1.9.2"},
        {},
    ],
    ids=["pinned", "other builds", "the one before", "no TorchRec", "no torch", "nothing"],
)
def test_releases_of_one_tested_generation_are_no_problem(versions: dict[str, str]) -> None:
    """Patches and builds do not matter, nor does a package that is not there."""
    assert mixed_generations(versions.get) is None


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({**PINNED, "torchrec": "1.6.1"}, "torch 2.14.1, fbgemm-gpu 1.9.0 and torchrec 1.6.1 are"),
        ({**PINNED, "fbgemm-gpu": "1.8.0"}, "fbgemm-gpu 1.8.0"),
        ({"torch": "2.11.0", "fbgemm-gpu": "1.6.0", "torchrec": "1.6.1"}, "torch 2.11.0"),
        ({**PINNED, "torch": "2.15.0"}, "torch 2.15.0"),
        ({"torch": "2.6.0"}, "torch 2.6.0 is"),
    ],
    ids=["TorchRec", "FBGEMM", "one generation, untested", "newer", "torch alone"],
)
def test_other_releases_are_named_with_those_that_fit(versions: dict[str, str], words: str) -> None:
    """The sentence has what was found, and the hint each tested generation."""
    problem = mixed_generations(versions.get)

    assert problem is not None
    found, hint = problem.split("; hint: ")
    assert words in found
    assert hint == "install " + ", or ".join(map(str, TESTED))


@pytest.mark.parametrize(
    ("torchrec", "is_too_old"), [("1.6.1", True), ("1.8.0", True), ("1.9.0", False), ("1.10.0", False)]
)
def test_training_refuses_a_torchrec_that_lacks_its_methods(torchrec: str, is_too_old: bool) -> None:  # noqa: FBT001
    """A newer one is untested, and no reason to refuse."""
    problem = too_old_for_training({**PINNED, "torchrec": torchrec}.get)

    assert (problem is not None) is is_too_old
    assert problem is None or f"torchrec {torchrec} is installed, the trainer needs 1.9 or newer" in problem


@pytest.mark.parametrize(
    ("torch", "release"), [("2.14.1", "1.9.0"), ("2.13.0+cpu", "1.8.0"), ("2.15.0", "1.9.0"), (None, "1.9.0")]
)
def test_the_hint_installs_what_fits_the_installed_torch(torch: str | None, release: str) -> None:
    """Where none fits, or there is no torch, those of the newest generation, whose torch the extras bring."""
    hint = kernels_hint({"torch": torch}.get)

    assert f"torchrec~={release} fbgemm-gpu-cpu~={release}" in hint


@pytest.mark.parametrize("page", ["README.md", "docs/guides/run-locally.md", "docs/guides/train.md"])
def test_pages_install_kernels_as_the_hint_does(page: str) -> None:
    """A page that names no releases installs the newest, which fit no torch of the extra some day."""
    command, _, _ = kernels_hint(lambda _: None).partition(" (")

    assert command in (ROOT / page).read_text(encoding="utf-8")


def test_the_tested_generations_are_those_of_the_pins() -> None:
    """The newest is pinned, the one before is what `make test-torchrec-1.8` installs, and the floor of torch."""
    newest, before = TESTED
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    environment = (ROOT / ".ci/make-venv").read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    for generation, text in ((newest, pins), (before, environment)):
        for name in ("torch", "fbgemm-gpu-cpu", "torchrec"):
            found = re.search(rf"(?m)(?:^|\s){name}==(\d+\.\d+)\.", text)
            assert found is not None
            assert found[1] == getattr(generation, name.partition("-")[0])
    assert f"torch>={before.torch}" in extras["pretrain"]
    (torch,) = (requirement for requirement in map(Requirement, extras["trainer"]) if requirement.name == "torch")
    assert [minor for minor in range(30) if torch.specifier.contains(f"2.{minor}.1")] == [
        int(generation.torch.removeprefix("2.")) for generation in (before, newest)
    ]
    assert newest.torchrec == ".".join(map(str, TRAINER_TORCHREC))
