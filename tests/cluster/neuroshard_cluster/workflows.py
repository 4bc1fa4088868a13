"""Checks the workflows of .github with actionlint, which is built from its Go module."""

import sys

from neuroshard_cluster import components
from neuroshard_cluster.commands import run
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.folders import SOURCES, default_home

WORKFLOWS = SOURCES.parent.parent / ".github" / "workflows"


def main() -> int:
    """Return 0, or 1 after the faults that were found."""
    try:
        program = components.built(components.ACTIONLINT, default_home(), say=print) / "actionlint"
        run([program, *sorted(WORKFLOWS.glob("*.yaml"))], cwd=WORKFLOWS.parent.parent)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
