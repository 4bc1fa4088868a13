"""Keeps a folder's processes as its files say: the pid 1 of a cluster, and of each of its nodes.

    processes/<name>/command.json   an argument list: the process should run
    processes/<name>/down           while this file is there, it should not
    processes/<name>/pid            written here: its pid inside this pid namespace
    processes/<name>/log            written here: what it printed

Level-based: each look compares what is with what should be, so no message between host and cluster can be lost.
Decides nothing about the cluster; standard library only, because it runs before anything else is there.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neuroshard_cluster.cgroups import Owner
from neuroshard_cluster.network import SHORT_FAREWELLS

LOOK_EVERY_S = 0.05
RESTART_AFTER_S = 0.5
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Supervisor:
    """The processes of one folder. It must be a pid 1, or the reaper of its descendants, to see them end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pids: dict[str, int] = {}
        self._ended_at_s: dict[str, float] = {}

    def look(self) -> None:
        """Reap what has ended, then bring every process one step nearer to what its files say."""
        self._reap()
        for command in sorted(self._folder.glob("*/command.json")):
            name = command.parent.name
            wanted = not (command.parent / "down").exists()
            if wanted and name not in self._pids:
                self._start(name, command)
            elif not wanted and name in self._pids:
                os.kill(self._pids[name], signal.SIGKILL)

    def _reap(self) -> None:
        while self._pids:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            for name in [name for name, known in self._pids.items() if known == pid]:
                del self._pids[name]
                self._ended_at_s[name] = time.monotonic()
                (self._folder / name / "pid").unlink(missing_ok=True)

    def _start(self, name: str, command: Path) -> None:
        if time.monotonic() - self._ended_at_s.get(name, -RESTART_AFTER_S) < RESTART_AFTER_S:
            return
        argv = json.loads(command.read_text())
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(command.parent / "log"), LOG_FLAGS, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        self._pids[name] = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions, setsid=True)
        (command.parent / "pid").write_text(str(self._pids[name]))


def supervise(folder: Path) -> None:
    """Look for ever. The end of a pid 1 ends its whole pid namespace, so nothing here cleans up."""
    supervisor = Supervisor(folder)
    while True:
        supervisor.look()
        time.sleep(LOOK_EVERY_S)


def declare(folder: Path, name: str, argv: Sequence[str | Path]) -> None:
    """Say that process `name` should run `argv`. A running one keeps its old arguments until it ends."""
    process = folder / name
    process.mkdir(parents=True, exist_ok=True)
    unfinished = process / "command.new"
    unfinished.write_text(json.dumps([str(word) for word in argv]))
    unfinished.rename(process / "command.json")


if __name__ == "__main__":
    Owner(name=sys.argv[2]).enter()
    for setting, value in SHORT_FAREWELLS.items():
        Path(f"/proc/sys/{setting}").write_text(value)
    supervise(Path(sys.argv[1]))
