"""What is in the wheel that people install."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("api", "costs", "dense", "planner", "report", "profiler"),
    *("trainer", "dropin", "python", "decisions", "operator", "cli"),
)


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel and return the names of the files in it."""
    directory = tmp_path_factory.mktemp("wheel")
    build = f"from hatchling.build import build_wheel; print(build_wheel({str(directory)!r}))"
    name = subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(directory / name.stdout.split()[-1]) as wheel:
        return set(wheel.namelist())


@pytest.mark.parametrize(
    "name",
    [
        "neuroshard_api/documents/plan.py",
        "neuroshard_api/presets/devices.toml",
        "neuroshard_api/py.typed",
        "neuroshard_cli/py.typed",
        "neuroshard_costs/bundles/h100-80gb/weights.safetensors",
        "neuroshard_costs/py.typed",
        "neuroshard_decisions/py.typed",
        "neuroshard_dense/py.typed",
        "neuroshard_operator/main.py",
        "neuroshard_operator/py.typed",
        "neuroshard_planner/py.typed",
        "neuroshard_profiler/py.typed",
        "neuroshard_report/html/templates/report.html.j2",
        "neuroshard_report/py.typed",
        "neuroshard_trainer/py.typed",
        "neuroshard_planner/workload_store.py",
        "neuroshard_planner/workloads/mlperf-dlrm-dcnv2.yaml",
    ],
)
def test_the_wheel_has_what_the_commands_need(wheel_names: set[str], name: str) -> None:
    """Packages, their types, and the data they read."""
    assert name in wheel_names


def test_the_wheel_has_every_file_of_its_packages(wheel_names: set[str]) -> None:
    """Code and data of the packages are in the wheel, and nothing else is but the metadata."""
    files = {
        path.relative_to(room)
        for room in (ROOT / name for name in ROOMS)
        for path in room.glob("neuroshard_*/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert {name for name in wheel_names if ".dist-info/" not in name} == set(map(str, files))


def test_images_are_built_from_every_package() -> None:
    """The trainer's has what a plan needs, as a script may plan by the drop-in; the operator's has not."""
    sources = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    trainer = (ROOT / "Dockerfile").read_text().partition(" AS trainer\n")[2]

    assert set(ROOMS) <= sources
    assert "--requirements=pyproject.toml --extra=trainer" in trainer
    assert "uv pip uninstall --quiet numpy scipy" in (ROOT / "Dockerfile").read_text()


def test_the_wheel_carries_the_licence(wheel_names: set[str]) -> None:
    """Apache-2.0 asks for its text next to the code."""
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
