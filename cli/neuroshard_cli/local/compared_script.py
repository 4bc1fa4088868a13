"""A training script of the user's that `neuroshard compare-training` starts with plans."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.failures import CommandError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan

SUFFIX = ".py"


def given_plans(paths: "Sequence[Path]") -> "tuple[int, Sequence[GivenPlan | TorchRecPlan]]":
    """Return the number of processes on this machine that plans are for, and the plans.

    Raises:
        DocumentError: a file is not a plan.
        CommandError: plans are for unlike numbers of processes, or for several nodes.
    """
    found = [_read(path) for path in paths]
    sizes = [_processes(plan) for plan in found]
    for path, (size, per_node) in zip(paths, sizes, strict=True):
        if size != per_node:
            raise CommandError(
                f"{path}: is for {size} devices on nodes of {per_node}; "
                "this command starts a script on this machine alone"
                "; hint: give plans for one node"
            )
        if size != sizes[0][0]:
            raise CommandError(
                f"{path}: is for {size} devices, and {paths[0]} for {sizes[0][0]}"
                f"; hint: give plans for the same devices"
            )
    return sizes[0][0], found


def script_command(text: str) -> list[str]:
    """Return the words of a script and its arguments; none of another file, such as a job's. Raises CommandError."""
    if Path(text).is_file():
        return [text] if text.endswith(SUFFIX) else []
    try:
        script, *arguments = shlex.split(text) or [""]
    except ValueError as error:
        raise CommandError(f"{text}: {error}; hint: write a script and its arguments as in a shell") from error
    if not script.endswith(SUFFIX):
        return []
    if not Path(script).is_file():
        raise CommandError(f"{script}: there is no such file; hint: give a job or a script")
    return [script, *arguments]


def request_file(
    folder: Path, plans: "Mapping[str, Path]", *, rounds: int, steps: int, result: Path
) -> "Mapping[str, str]":
    """Write the script's request, and return the environment that names it."""
    from neuroshard_api.documents.comparison_request import COMPARISON_VARIABLE, ComparisonRequest

    request = ComparisonRequest(
        plans={name: str(path.absolute()) for name, path in plans.items()},
        rounds=rounds,
        steps_per_round=steps,
        result=str(result),
    )
    file = folder / "request.json"
    file.write_text(request.to_json(), encoding="utf-8")
    return {COMPARISON_VARIABLE: str(file)}


def _read(path: Path) -> "GivenPlan | TorchRecPlan":
    from neuroshard_api.documents.document import read_data
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan
    from neuroshard_dlrm.plan_file import read_given_plan

    raw = read_data(path)
    if TorchRecPlan.is_named_by(raw):
        return TorchRecPlan.from_data(raw, where=str(path))
    return read_given_plan(path)


def _processes(plan: "GivenPlan | TorchRecPlan") -> tuple[int, int]:
    """Return the processes of a plan, and those of a node."""
    from neuroshard_api.documents.torchrec_plan import TorchRecPlan

    if isinstance(plan, TorchRecPlan):
        return plan.world_size, plan.local_world_size
    return plan.num_devices, plan.devices_per_node
