"""Copies of pooled embeddings to samples that repeat a list, and the sums of their gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.model.expansion import Expansion


@given(
    changes=st.lists(st.booleans(), min_size=1, max_size=20),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_copies_of_a_group_have_the_bits_of_copies_by_feature(
    changes: list[bool], widths: list[int], seed: int
) -> None:
    """Rows and gradients of torch's index_select, feature by feature; a feature in no group stays as it is."""
    names = [f"f{index}" for index in range(len(widths))]
    rows = torch.cumsum(torch.tensor([0, *map(int, changes[1:])]), dim=0)
    maker = torch.Generator().manual_seed(seed)
    pooled = {
        name: torch.randn(len(rows), width, generator=maker).requires_grad_()
        for name, width in zip(names, widths, strict=True)
    }
    pooled["other"] = torch.randn(len(rows), 2, generator=maker).requires_grad_()
    expanded = Expansion(["other", *names], [names])(pooled, rows[None])
    by_feature = [pooled[name].index_select(0, rows) for name in names]
    upstream = [torch.randn(each.shape, generator=maker) for each in by_feature]

    assert expanded["other"] is pooled["other"]
    assert all(torch.equal(expanded[name], own) for name, own in zip(names, by_feature, strict=True))
    inputs = [pooled[name] for name in names]
    found = torch.autograd.grad([expanded[name] for name in names], inputs, upstream)
    wanted = torch.autograd.grad(by_feature, inputs, upstream)
    assert all(map(torch.equal, found, wanted))
