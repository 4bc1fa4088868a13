"""The commands of ``neuroshard`` by task, each imported when it is asked for: help and typing errors import none."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.missing_package import NO_EXTRA
from typer.core import TyperGroup

from neuroshard_cli.shared.grouped_help import GroupedCommand


@dataclass(frozen=True)
class CommandEntry:
    """One command: its name, its line in the list of commands, and the function that runs it."""

    name: str
    summary: str
    """First line of the function's docstring, so that the list can be printed without importing the function."""
    module: str
    function: str
    extra: str | None
    """Of this distribution, which brings the packages that the command needs, or `NO_EXTRA`. None: it needs what every
    room needs."""
    kernels: bool
    """Whether it also needs TorchRec and FBGEMM, which no extra brings: their versions follow torch and the device."""

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        return cast("Callable[..., Any]", getattr(import_module(self.module), self.function))


def _entry(
    name: str, summary: str, *, extra: str | None = NO_EXTRA, module: str | None = None, kernels: bool = False
) -> CommandEntry:
    function = name.replace("-", "_")
    module = module or f"neuroshard_cli.commands.{function}"
    return CommandEntry(name, summary, module, function, extra, kernels)


COMMAND_GROUPS: dict[str, tuple[CommandEntry, ...]] = {
    "Plan": (
        _entry("plan", "Plan the placement of a model's embedding tables."),
        _entry("compare", "Compare all algorithms on one request."),
        _entry("score", "Price any plan: its cost, its losses, and the gain of moving three tables."),
        _entry(
            "estimate",
            "Plan a model on several numbers and kinds of devices: speed, memory, and price of a sample for each.",
        ),
        _entry("explain", "Explain a plan, or one of its tables."),
        _entry("diff", "Compare two plans: tables that move, bytes that move, and the parts of the step that change."),
        _entry("report", "Write a plan, or what a run or a job measured under its plan, as one HTML file."),
        _entry("validate", "Check files, and list every problem of every file."),
        _entry("export", "Write a plan as a TorchRec sharding plan, or its step as a trace."),
    ),
    "Describe your data": (
        _entry(
            "init",
            "Write a job for your data to stdout: `validate`, `plan`, `run`, and `kubectl apply` take it.",
            extra="data",
        ),
        _entry("stats", "Make a table set from a sample of training data, or from a TorchRec module.", extra="data"),
        _entry(
            "cluster-sessions",
            "Rewrite a log with the samples of a session together.",
            extra="sessions",
            module="neuroshard_profiler.sessions.commands",
        ),
    ),
    "Measure your hardware": (
        _entry(
            "profile",
            "Measure this machine and fit cost models to it.",
            extra="profiler",
            module="neuroshard_profiler.commands",
        ),
        _entry("pretrain", "Train cost models on a simulated device.", extra="pretrain"),
        _entry(
            "calibrate", "Correct cost models by measurements: records of another machine, or the steps of a training."
        ),
    ),
    "Train on this machine": (
        _entry("run", "Profile, plan, and train a job on this machine.", extra="run", kernels=True),
        _entry(
            "sweep",
            "Divide devices among variants of a job so that all train in the least time, write a job for each, and "
            "train them.",
        ),
        _entry(
            "compare-training",
            "Train a job or a script under several plans in turns, from equal weights, and compare their step times.",
            extra="run",
            kernels=True,
        ),
        _entry(
            "compare-accuracy",
            "Train a job with a plan's narrow types and exactly, in pairs of equal seeds, and compare the accuracy.",
            extra="run",
            kernels=True,
        ),
        _entry(
            "evaluate",
            "Compute loss, normalized entropy, AUC, and calibration of an exported model.",
            extra="run",
            kernels=True,
        ),
    ),
    "Train on Kubernetes": (
        _entry("submit", "Check a job file here, and create the job in the cluster.", extra="client"),
        _entry(
            "approve", "Approve the plan that a job, or a run on this machine, waits with or suggests.", extra="client"
        ),
        _entry("status", "Show a job's stages, costs, and last failure.", extra="client"),
        _entry("logs", "Print the logs of the pods of a job's stage.", extra="client"),
    ),
    "Look up": (
        _entry("workloads", "List the bundled table sets of public models."),
        _entry("devices", "List the device types with built-in data."),
        _entry("doctor", "List the installed packages, and the missing packages of each command.", extra=None),
    ),
}
"""By task, in the order in which help lists them."""

OF_PODS = (
    _entry(
        "publish",
        "Run a command in a pod, and publish what it wrote as a ConfigMap.",
        extra=None,
        module="neuroshard_api.pod.publish",
    ),
)
"""Run by the operator's pods alone, and not listed."""

ENTRIES = {entry.name: entry for entries in (*COMMAND_GROUPS.values(), OF_PODS) for entry in entries}


def no_such_command(name: str) -> str:
    """Return the sentence for a word that is not a command, with the nearest one."""
    near = get_close_matches(name, ENTRIES, n=1)
    hint = f"did you mean `neuroshard {near[0]}`" if near else "`neuroshard --help` lists the commands"
    return f"there is no command {name!r}; hint: {hint}"


class CommandGroup(TyperGroup):
    """The group of ``neuroshard``: lists `COMMAND_GROUPS`, and imports a command when it is looked up."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        self.commands = dict.fromkeys(ENTRIES, cast("Any", None))  # their names, which typing errors are compared with

    def resolve_command(self, ctx: typer.Context, args: list[str]) -> Any:  # type: ignore[override]  # noqa: ANN401 - as below
        """Return the command that the first word names. Raises CommandError where there is none."""
        if args and args[0] not in ENTRIES and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise CommandError(no_such_command(args[0]))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]  # noqa: ANN401, ARG002 - typer's command classes are private
        """Import a command. None if there is none of this name."""
        if cmd_name not in ENTRIES:
            return None
        single = typer.Typer(rich_markup_mode=None, add_completion=False)
        single.command(cmd_name, cls=GroupedCommand)(ENTRIES[cmd_name].load())
        return typer.main.get_command(single)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ANN401, ARG002 - as above
        """Write the commands by task."""
        width = max(map(len, ENTRIES))
        for task, entries in COMMAND_GROUPS.items():
            with formatter.section(task):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])
