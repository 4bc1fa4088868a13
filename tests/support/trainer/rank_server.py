"""Groups of ranks on this machine, all forked from one process that has imported torch and TorchRec once.

The server reads groups as lines of JSON from its stdin and answers each with a line. Ranks meet at a store of the
server, by the variables that torchrun sets; what they print goes to FOLDER/rank-N.log.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TESTS = Path(__file__).parents[2]
WITHIN_S = 600.0
_POLL_S = 0.02
_PORT_BYTES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that run one function."""

    target: str
    """``module:function``, or ``file.py:function``. An integer that it returns is the exit code of the rank."""
    arguments: Sequence[Any]
    """For the function, as JSON."""
    folder: str
    """Where the output of each rank goes."""
    count: int
    per_node: int
    """Processes per node; consecutive ranks share one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    after_failure_s: float = 0.0
    """How long the others may go on after the first rank that failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How the ranks of a group ended."""

    codes: Sequence[int]
    """Exit codes by rank, the negative of a signal where one ended it."""
    ended_at: Sequence[float]
    """Seconds since the epoch, by rank."""


class RankServer:
    """The server's client. The process starts with the first group, and again after one that did not answer."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server and all ranks."""
        self.close()

    def found(self, worker: Path, *, folder: Path, count: int) -> Any:
        """Run a worker's ``main(folder)`` on ranks that must succeed, and return the content of its ``found.json``."""
        self.succeed(f"{worker}:main", folder, folder=folder, count=count)
        return json.loads((folder / "found.json").read_text())

    def succeed(self, target: str, *arguments: object, folder: Path, count: int, per_node: int | None = None) -> str:
        """Run a group of which every rank must succeed, and return the output of rank 0."""
        ended = self.run(target, *arguments, folder=folder, count=count, per_node=per_node)
        assert not any(ended.codes), "\n".join(
            f"rank {rank} ended with {code}:\n{output(folder, rank)}" for rank, code in enumerate(ended.codes) if code
        )
        return output(folder, 0)

    def run(
        self,
        target: str,
        *arguments: object,
        folder: Path,
        count: int,
        per_node: int | None = None,
        after_failure_s: float = 0.0,
        **environment: str,
    ) -> Ended:
        """Run a group to its end."""
        group = Group(
            target=target,
            arguments=arguments,
            folder=str(folder),
            count=count,
            per_node=per_node or count,
            environment=environment,
            after_failure_s=after_failure_s,
        )
        try:
            return Ended(**json.loads(self._answer(json.dumps(asdict(group), default=str))))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the server and all ranks."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def _answer(self, line: str) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def output(folder: Path, rank: int) -> str:
    """Return the output of a rank."""
    return Path(folder, f"rank-{rank}.log").read_text()


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Join this rank to the others; none leaves before all are done."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    yield
    dist.barrier()
    dist.destroy_process_group()


def shorten_heartbeat(timeout_seconds: float = 5.0) -> None:
    """Let this process notice a silent rank sooner than a training does, and end itself sooner after it."""
    from neuroshard_trainer.ranks import heartbeat

    heartbeat.TIMEOUT_SECONDS, heartbeat.GRACE_SECONDS = timeout_seconds, 0.5


def run_script(path: str, *arguments: str) -> None:
    """Run a script as its user would. For a group's target."""
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def run_group(group: Group) -> Ended:
    """Fork the ranks and wait for their end; none outlives the call.

    The store is made after the last rank: its thread serves the first ones while others are forked, and a lock that it
    holds at that moment is never released in the fork.
    """
    from torch._C._distributed_c10d import TCPStore

    ports, ports_in = os.pipe()
    pids = [_fork(group, rank, ports) for rank in range(group.count)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=WITHIN_S))
    os.write(ports_in, group.count * store.port.to_bytes(_PORT_BYTES))
    os.close(ports_in)
    os.close(ports)
    codes: dict[int, int] = {}
    ended_at: dict[int, float] = {}
    until = time.monotonic() + WITHIN_S
    while len(codes) < group.count:
        if time.monotonic() >= until:
            for rank in set(range(group.count)) - set(codes):
                os.kill(pids[rank], signal.SIGKILL)
            until = float("inf")
        for rank in set(range(group.count)) - set(codes):
            found, status = os.waitpid(pids[rank], os.WNOHANG)
            if not found:
                continue
            codes[rank], ended_at[rank] = os.waitstatus_to_exitcode(status), time.time()
            if codes[rank]:
                until = min(until, time.monotonic() + group.after_failure_s)
        time.sleep(_POLL_S)
    ranks = range(group.count)
    return Ended(codes=[codes[rank] for rank in ranks], ended_at=[ended_at[rank] for rank in ranks])


def _fork(group: Group, rank: int, ports: int) -> int:
    """Return the child's process; the child itself never returns.

    Args:
        group: of the rank.
        rank: within it.
        ports: file from which each rank reads the port of the store.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _redirect(Path(group.folder, f"rank-{rank}.log"))
        place = {"RANK": rank, "LOCAL_RANK": rank % group.per_node, "WORLD_SIZE": group.count}
        place |= {"LOCAL_WORLD_SIZE": group.per_node, "MASTER_PORT": int.from_bytes(os.read(ports, _PORT_BYTES))}
        os.environ.update({name: str(value) for name, value in place.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True", **group.environment})
        _seed(rank)
        found = _target(group.target)(*group.arguments)
        code = found if isinstance(found, int) else 0
    except BaseException:  # noqa: BLE001 - in the rank's output, and in its exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _seed(rank: int) -> None:
    """Give each rank random numbers of its own, the same ones in every run."""
    import torch

    torch.manual_seed(rank)


def _redirect(log: Path) -> None:
    opened = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(opened, 1)
    os.dup2(opened, 2)


def _target(name: str) -> Any:
    place, function = name.rsplit(":", 1)
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), function)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


def main() -> None:
    """Serve groups until stdin ends."""
    from neuroshard_api.process.collector import uncollected_imports

    with uncollected_imports():
        importlib.import_module("neuroshard_trainer.run")
    for line in sys.stdin:
        answer = run_group(Group(**json.loads(line)))
        print(json.dumps(asdict(answer)), flush=True)  # noqa: T201 - the client reads it


if __name__ == "__main__":
    main()
