"""Four processes on this machine that stand for two nodes of two; they share one import of torch."""

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NODES, PER_NODE = 2, 2
WORLD_SIZE = NODES * PER_NODE
WITHIN_S = 800


def run_four(script: Path, *arguments: object) -> None:
    """Run a script that calls `fork_ranks`; all of its ranks must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=WITHIN_S)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output


def fork_ranks(folder: Path, main: Callable[[], None]) -> None:
    """Fork the ranks, which meet through a file in the folder, run ``main`` on each, and exit with 1 if one fails."""
    children = [pid for pid in (_forked(rank, folder, main) for rank in range(WORLD_SIZE)) if pid]
    codes: list[int] = []
    while len(codes) < len(children):
        _, status = os.wait()
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1]:
            for pid in children:
                _kill(pid)
    sys.exit(int(any(codes)))


def _forked(rank: int, folder: Path, main: Callable[[], None]) -> int:
    """Return the child's process; the child itself never returns."""
    pid = os.fork()
    if pid:
        return pid
    import torch.distributed as dist

    place = {"RANK": rank, "LOCAL_RANK": rank % PER_NODE, "WORLD_SIZE": WORLD_SIZE, "LOCAL_WORLD_SIZE": PER_NODE}
    os.environ.update({name: str(value) for name, value in place.items()})
    code = 1
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder.resolve() / 'store'}", rank=rank, world_size=WORLD_SIZE
        )
        main()
        dist.barrier()
        code = 0
    except BaseException:  # noqa: BLE001 - shown, and told by the exit code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
