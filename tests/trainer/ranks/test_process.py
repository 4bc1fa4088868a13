"""A process among those of a training."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.tables import Optimizer
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.ranks.devices import Cuda
from neuroshard_trainer.ranks.peers import Peers
from neuroshard_trainer.ranks.process import THREADS_VARIABLE, Launched, compute_on_one_core, joined, start_process
from support.trainer.served_plans import MODEL, SPEC, planned
from support.trainer.trainer_builders import job_data, write_job
from torch._C._distributed_c10d import HashStore

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    """Let torch compute with three threads, as on a machine with three cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("given", "found"), [(None, 1), ("3", 3)], ids=["by default", "as the user asks"])
def test_a_rank_computes_on_one_core_unless_the_user_asks_for_more(
    monkeypatch: pytest.MonkeyPatch, given: str | None, found: int
) -> None:
    """As the profile of its device did."""
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(THREADS_VARIABLE, given)

    compute_on_one_core()

    assert torch.get_num_threads() == found


class Ranks:
    """What a rank asks of torch to meet the others: three of them, of which the last may be a server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, rank: int) -> None:
        self.groups: list[tuple[Sequence[int] | None, Mapping[str, Any]]] = []
        """Of each group its ranks, None where it has all, and what else was asked for; the default one comes first."""
        self._rank = rank
        for name, function in {
            "init_process_group": self._init,
            "new_group": self._new_group,
            "get_rank": lambda: rank,
            "get_world_size": lambda: 3,
        }.items():
            monkeypatch.setattr(dist, name, function)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
        monkeypatch.setattr(Peers, "met", lambda _group, *, server: server)

    def _init(self, **asked: Any) -> None:
        self._new_group(**asked)

    def _new_group(self, ranks: Sequence[int] | None = None, **asked: Any) -> object:
        del asked["timeout"]
        self.groups.append((ranks, asked))
        is_in_it = ranks is None or self._rank in ranks
        return dist.ProcessGroup(HashStore(), 0, 1) if is_in_it else dist.GroupMember.NON_GROUP_MEMBER


GLOO: Mapping[str, Any] = {"backend": "gloo"}


@pytest.mark.parametrize(("device", "own"), [(CPU, GLOO), (GPU, {"backend": "nccl", "device_id": GPU})])
def test_trainers_meet_servers_by_gloo_and_each_other_by_their_devices(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, own: Mapping[str, Any]
) -> None:
    """The default group, in which tables on servers are looked up, is one that servers can be in."""
    ranks = Ranks(monkeypatch, rank=1)
    found = joined(device, timeout_seconds=60, servers=ServerPool(count=1, memory_bytes=2**30))

    assert ranks.groups == [(None, GLOO), (None, GLOO), ([0, 1], own), ([0, 1], GLOO)]
    assert found.trainers is not None
    assert found.trainers_on_host is not None
    assert found.trainers is not found.trainers_on_host


def test_gpus_without_servers_have_the_default_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ever: their communicator is made when they meet."""
    ranks = Ranks(monkeypatch, rank=1)
    found = joined(GPU, timeout_seconds=60)

    assert ranks.groups == [(None, {"backend": "nccl", "device_id": GPU}), (None, GLOO)]
    assert (found.trainers, found.trainers_on_host) == (None, None)


def test_a_server_calls_no_cuda_and_takes_part_in_as_many_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its trainers are to have GPUs: its host may have none, and its torch no NCCL."""

    def no_cuda() -> object:
        raise AssertionError("a server looks for no GPU")

    monkeypatch.setattr(Cuda, "here", no_cuda)
    ranks = Ranks(monkeypatch, rank=2)
    trainer = {"numProcPerNode": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
    job = read_job(write_job(tmp_path, job_data(**{**SPEC, "model": MODEL, "trainer": trainer})))
    launched = Launched(rank=2, local_rank=0, world_size=3, local_world_size=1)
    found = start_process(job, planned(1, Optimizer.SGD), launched, "cuda", nccl_log_folder=tmp_path)

    assert (found.device, found.is_server) == (CPU, True)
    assert [members for members, _ in ranks.groups] == [None, None, [0, 1], [0, 1]]
    assert (found.trainers, found.trainers_on_host) == (None, None)
