"""Plan files as other commands take them: read, and checked against their own request."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuroshard_api.plan import Plan


def read_plan(path: Path) -> "Plan":
    """Read a plan that matches its own tables, devices and limits. Raises DocumentError with every problem."""
    from neuroshard_api.document import DocumentError
    from neuroshard_api.plan import Plan
    from neuroshard_planner.checks import plan_problems

    plan = Plan.read(path)
    problems = plan_problems(plan)
    if problems:
        raise DocumentError(str(path), problems)
    return plan
