"""What may be imported where, proved by importing it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "torchrec", "fbgemm_gpu", "matplotlib", "ortools")
LIGHT_ROOMS = (
    "api/neuroshard_api",
    "costs/neuroshard_costs",
    "dense/neuroshard_dense",
    "planner/neuroshard_planner",
    "report/neuroshard_report",
    "python/neuroshard_dlrm",
    "decisions/neuroshard_decisions",
    "cli/neuroshard_cli",
)
HEAVY_ROOMS = ("costs/neuroshard_costs/pretrain",)
"""Rooms that exist to use a heavy package; the others must start without any."""


def light_modules() -> list[str]:
    """Return every module of the plan path and of the commands by its import name."""
    modules = []
    for room in LIGHT_ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if not any(path.is_relative_to(ROOT / heavy) for heavy in HEAVY_ROOMS):
                name = path.relative_to((ROOT / room).parent).with_suffix("")
                modules.append(".".join(part for part in name.parts if part != "__init__"))
    return modules


def heavy_packages_after(statement: str) -> str:
    """Run a statement in a new interpreter and return the heavy packages that it loaded."""
    return loaded_after(statement, HEAVY)


def loaded_after(statement: str, packages: tuple[str, ...]) -> str:
    """Run a statement in a new interpreter and return which of these packages it loaded."""
    code = f"import sys\n{statement}\nprint(*sorted(set({packages!r}) & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_plan_path_starts_without_heavy_packages() -> None:
    """Planner image and demo have no torch: neither the plan nor a command's help may need it."""
    modules = [name for name in light_modules() if not name.endswith("__main__")]

    assert "neuroshard_api.documents.plan" in modules
    assert heavy_packages_after(f"import {', '.join(modules)}") == ""


def test_a_local_run_is_decided_on_without_a_cluster() -> None:
    """What decides and what runs on one machine loads neither the operator nor a client of Kubernetes."""
    rooms = ("neuroshard_decisions.", "neuroshard_cli.local.")
    modules = [name for name in light_modules() if name.startswith(rooms)]
    absent = ("kopf", "kubernetes", "aiohttp", "neuroshard_operator")

    assert {"neuroshard_decisions.reconcile", "neuroshard_cli.local.children"} <= set(modules)
    assert loaded_after(f"import {', '.join(modules)}", absent) == ""


def test_the_documents_need_no_numpy() -> None:
    """The operator's image has neither torch nor NumPy."""
    modules = "neuroshard_api.schemas, neuroshard_api.documents.table_files"

    assert heavy_packages_after(f"import {modules}\nassert 'numpy' not in sys.modules") == ""


def test_a_first_level_folder_is_no_package() -> None:
    """An ``operator/__init__.py`` would shadow the standard library's operator."""
    assert not list(ROOT.glob("*/__init__.py"))


def test_tests_are_no_packages() -> None:
    """They are imported by path, so that equal file names do not clash."""
    assert not list((ROOT / "tests").rglob("__init__.py"))
