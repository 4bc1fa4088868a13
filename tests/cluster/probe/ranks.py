"""One rank of a two-node torchrun: all-reduce and all-to-all over gloo, and a check of both results."""

import torch
import torch.distributed as dist


def main() -> None:
    """Exit with an error unless every rank has received what every other one sent."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == size * (size - 1) / 2, total
    sent = torch.tensor([float(rank * size + peer) for peer in range(size)])
    received = torch.empty(size)
    dist.all_to_all_single(received, sent)
    expected = torch.tensor([float(peer * size + rank) for peer in range(size)])
    assert torch.equal(received, expected), received
    if rank == 0:
        print(f"{size} ranks agree", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
