"""Check the workflows of .github with actionlint, built from its Go module, and run their shell steps here.

Steps run one after the other in this checkout. Actions, and steps that need values of GitHub's, are named and left out.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from neuroshard_cluster import components
from neuroshard_cluster.commands import run
from neuroshard_cluster.errors import ClusterError, HostError
from neuroshard_cluster.folders import SOURCES, default_home

ROOT = SOURCES.parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
# As GitHub runs a step that names no shell.
SHELL = ("bash", "--noprofile", "--norc", "-e", "-c")
EXPRESSION = "${{"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a workflow's job. `command` is empty for an action."""

    title: str
    command: str = ""
    condition: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def obstacle(self) -> str:
        """Why it cannot run here; empty if it can."""
        if not self.command:
            return "an action of GitHub's"
        if self.condition not in ("", "always()"):
            return f"its condition needs GitHub: {self.condition}"
        texts = (self.command, *self.environment.values())
        return "it uses values of GitHub's" if any(EXPRESSION in text for text in texts) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a step. `exit_code` is None for one that did not run, and `reason` says why."""

    step: Step
    exit_code: int | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def row(self) -> str:
        """The row of a Markdown table."""
        ended = f"exit code {self.exit_code}" if self.exit_code is not None else f"not run: {self.reason}"
        return f"| `{self.step.title}` | {ended} | {self.seconds:.0f} |"


def steps(workflow: Mapping[str, Any]) -> list[Step]:
    """Return the steps of all jobs of a workflow, in order."""
    return [
        Step(
            title=str(step.get("run") or step.get("uses")).strip(),
            command=step.get("run", ""),
            condition=str(step.get("if", "")),
            environment={name: str(value) for name, value in step.get("env", {}).items()},
        )
        for job in workflow["jobs"].values()
        for step in job["steps"]
    ]


def outcomes(to_run: Sequence[Step], folder: Path) -> Iterator[Outcome]:
    """Run steps in `folder`; after one that fails, only those with the condition `always()`."""
    failed = False
    for step in to_run:
        if step.obstacle:
            yield Outcome(step=step, reason=step.obstacle)
        elif failed and step.condition != "always()":
            yield Outcome(step=step, reason="a step before it failed")
        else:
            began = time.monotonic()
            environment = {**os.environ, "CI": "true", **step.environment}
            done = subprocess.run([*SHELL, step.command], cwd=folder, env=environment, check=False)
            failed = failed or done.returncode != 0
            yield Outcome(step=step, exit_code=done.returncode, seconds=time.monotonic() - began)


def lint() -> None:
    """Check all workflows.

    Raises:
        CommandError: actionlint found a fault; the message lists all.
    """
    program = components.built(components.ACTIONLINT, default_home(), say=print) / "actionlint"
    run([program, *sorted(WORKFLOWS.glob("*.yaml"))], cwd=ROOT)


def run_here(name: str) -> bool:
    """Run the shell steps of the workflow `name`, print a table of them, and return whether all succeeded.

    Raises:
        HostError: There is no such workflow.
    """
    file = WORKFLOWS / f"{name}.yaml"
    if not file.exists():
        known = ", ".join(sorted(path.stem for path in WORKFLOWS.glob("*.yaml")))
        raise HostError(f"there is no workflow {name!r}\nhint: use one of {known}")
    ended = list(outcomes(steps(yaml.safe_load(file.read_text())), ROOT))
    rows = "\n".join(["| step | outcome | s |", "|---|---|---|", *(outcome.row for outcome in ended), ""])
    sys.stdout.write(rows)
    return not any(outcome.exit_code for outcome in ended)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 1 after the faults that were found, or after a step that failed."""
    parser = argparse.ArgumentParser(prog="neuroshard_cluster.workflows", description=__doc__)
    parser.add_argument("run", nargs="?", help="the workflow to run here, such as e2e; if left out, all are checked")
    options = parser.parse_args(argv)
    try:
        if options.run:
            return 0 if run_here(options.run) else 1
        lint()
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
