"""Runs other programs and turns their failure into one readable sentence."""

import contextlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuroshard_cluster.errors import CommandError, HostError
from neuroshard_cluster.folders import SOURCES

SHOWN_CHARACTERS = 2000
# A program behind these words is killed when the thread that started it ends, be it by a kill that nobody can catch.
BOUND_TO_CALLER = ("setpriv", "--pdeathsig", "KILL")


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> str:
    """Run `argv` and return its standard output. `stdin` is a text, or the file to read.

    Raises:
        CommandError: It exited with another status than 0, or ran longer than `timeout_s`.
        HostError: There is no such program.
    """
    line = " ".join(str(word) for word in argv)
    try:
        with stdin.open("rb") if isinstance(stdin, Path) else contextlib.nullcontext() as file:
            done = subprocess.run(
                [str(word) for word in argv],
                input=stdin if isinstance(stdin, str) else None,
                stdin=file,
                cwd=cwd,
                env=env,
                timeout=timeout_s,
                capture_output=True,
                text=True,
                check=False,
            )
    except FileNotFoundError as missing:
        if missing.filename != str(argv[0]):
            raise
        raise HostError(f"there is no program {argv[0]}\nhint: install it, or put its folder on PATH") from missing
    except subprocess.TimeoutExpired as late:
        raise CommandError(f"`{line}` did not end within {timeout_s:.0f} s") from late
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-SHOWN_CHARACTERS:]
        raise CommandError(f"`{line}` exited with {done.returncode}: {said}")
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Return whether `argv` exits with 0; what it prints is dropped."""
    try:
        run(argv)
    except CommandError:
        return False
    return True


def contained(argv: Sequence[str | Path]) -> list[str | Path]:
    """Return `argv` in mount and pid namespaces of its own, which end with the calling thread, however that ends.

    So what `argv` mounts or leaves running can never stay behind.
    """
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    return [*BOUND_TO_CALLER, *namespaces, "--", *argv]


def python_module(module: str, *arguments: str | Path) -> list[str | Path]:
    """Return the command line of one of this package's modules, for a process of its own."""
    return ["env", f"PYTHONPATH={SOURCES}", sys.executable, "-m", f"neuroshard_cluster.{module}", *arguments]
