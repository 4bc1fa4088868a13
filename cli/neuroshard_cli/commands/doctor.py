"""``neuroshard doctor``: what is installed here, which device there is, and what each command still needs."""

import json as json_format
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import in_lines

from neuroshard_cli.command_list import ENTRIES, no_such_command
from neuroshard_cli.shared.completion import complete_commands
from neuroshard_cli.shared.output import print_document
from neuroshard_cli.shared.request_options import JsonOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from neuroshard_cli.shared.installation import CommandCheck

SHOWN = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "kubernetes", "duckdb")
"""Packages whose versions are asked for in a report of a bug."""


def doctor(
    command: Annotated[
        str | None,
        typer.Argument(
            help="A command, such as run: ends with 5 if it could not run here.", autocompletion=complete_commands
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """List the installed packages, and the missing packages of each command.

    Reads the metadata of packages and asks nvidia-smi; imports no package, and contacts no cluster.
    """
    from neuroshard_cli.shared.installation import check_command

    if command is not None and command not in ENTRIES:
        raise CommandError(no_such_command(command))
    entries = ENTRIES.values() if command is None else [ENTRIES[command]]
    checks = [check_command(entry) for entry in entries]
    facts, problems = _machine()
    if json:
        findings = {
            "machine": facts,
            "problems": problems,
            "commands": [
                {"command": each.command, "missing": each.missing, "install": each.install} for each in checks
            ],
        }
        print_document(json_format.dumps(findings, indent=1) + "\n")
    else:
        from neuroshard_report.terminal.printing import print_content

        print_content(_content(facts, problems, checks))
    return ExitCode.MISSING_PACKAGE if command is not None and checks[0].missing else ExitCode.OK


def _machine() -> tuple[dict[str, Any], list[str]]:
    """Return the facts of this machine, and the problems among them."""
    from neuroshard_api.process.generations import installed_version
    from neuroshard_api.process.gpu_driver import driver_version, gpu_names

    from neuroshard_cli.shared.installation import DISTRIBUTION, conflicts, cuda_of_torch

    driver, cuda = driver_version(), cuda_of_torch()
    facts = {
        "neuroshard": installed_version(DISTRIBUTION),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": list(gpu_names()),
        "driver": driver,
        "cuda_of_torch": cuda,
        "packages": {name: installed_version(name) for name in SHOWN},
        "kubeconfig": _kubeconfig(),
    }
    return facts, list(conflicts(cuda=cuda, driver=driver))


def _kubeconfig() -> str | None:
    """Return the place of the kubeconfig that commands would use. None: there is none."""
    named = os.environ.get("KUBECONFIG")
    if named:
        return named
    usual = Path.home() / ".kube" / "config"
    return str(usual) if usual.is_file() else None


def _content(facts: dict[str, Any], problems: list[str], checks: "list[CommandCheck]") -> "RenderableType":
    from neuroshard_report.terminal.tables import fact_grid
    from rich.console import Group

    packages = [f"{name} {version}" for name, version in facts["packages"].items() if version]
    built = f"torch is built for CUDA {facts['cuda_of_torch']}" if facts["cuda_of_torch"] else "no torch with CUDA"
    rows = [
        ("neuroshard", f"{facts['neuroshard']}, Python {facts['python']}, {facts['system']}"),
        ("device", f"{_gpus(facts)}; {facts['cpus']} CPU cores"),
        ("packages", ", ".join(packages) or "none of " + ", ".join(SHOWN)),
        ("CUDA", f"{built}; NVIDIA driver: {facts['driver'] or 'none'}"),
        ("kubeconfig", facts["kubeconfig"] or "none: $KUBECONFIG is unset, and there is no ~/.kube/config"),
    ]
    lines = ["", *(f"problem: {in_lines(problem)}" for problem in problems), *([""] if problems else [])]
    width = max(len(check.command) for check in checks)
    for check in checks:
        state = "ready" if not check.missing else f"needs {', '.join(check.missing)}"
        lines.append(f"{check.command:<{width}}  {state}")
    hints = dict.fromkeys(check.install for check in checks if check.install)
    lines += [f"hint: {_commands(checks, install)}: {install}" for install in hints]
    return Group(fact_grid(rows), *lines)


def _gpus(facts: dict[str, Any]) -> str:
    gpus: list[str] = facts["gpus"]
    if not gpus:
        return "no GPU"
    return ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus))


def _commands(checks: "list[CommandCheck]", install: str) -> str:
    return ", ".join(check.command for check in checks if check.install == install)
