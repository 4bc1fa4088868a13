"""The command `neuroshard` as a user of a test's namespace runs it."""

import sys
from pathlib import Path

from neuroshard_cluster.commands import run
from neuroshard_cluster.plugin import Namespace


def neuroshard(namespace: Namespace, *words: str) -> str:
    """Run `neuroshard words...` in the namespace and return its output."""
    program = str(Path(sys.executable).with_name("neuroshard"))
    return run([program, *words, "--namespace", namespace.name], env=namespace.kubectl.environment)
