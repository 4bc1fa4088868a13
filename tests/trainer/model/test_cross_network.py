"""The cross network layer by layer, next to TorchRec's, which keeps all layers' weights in one module."""

import torch
from neuroshard_trainer.model.cross_network import Columns, CrossLayers, DistinctInputs, saved_name
from torch import nn
from torchrec.modules.crossnet import LowRankCrossNet

COLUMNS, LAYERS, RANK = 12, 3, 4


def pair() -> tuple[CrossLayers, LowRankCrossNet]:
    """Return both, drawn from the same seed."""
    torch.manual_seed(5)
    ours = CrossLayers(COLUMNS, LAYERS, low_rank=RANK)
    torch.manual_seed(5)
    return ours, LowRankCrossNet(COLUMNS, LAYERS, low_rank=RANK)


def test_first_weights_values_and_gradients_are_torchrecs() -> None:
    """To the last bit: a job trains as it did before the layers were modules of their own."""
    ours, theirs = pair()
    x = torch.randn(6, COLUMNS)

    for network in (ours, theirs):
        torch.autograd.backward(network(x).square().sum())

    assert torch.equal(ours(x), theirs(x))
    wanted = {name: weight.grad for name, weight in theirs.named_parameters()}
    for name, weight in ours.named_parameters():
        gradient, expected = weight.grad, wanted[saved_name(name)]
        assert gradient is not None
        assert expected is not None
        assert torch.equal(gradient, expected), name


def test_state_dicts_have_torchrecs_names_in_both_directions() -> None:
    """Checkpoints of earlier releases go on, and exported models keep their names."""
    ours, theirs = pair()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    other = CrossLayers(COLUMNS, LAYERS, low_rank=RANK)

    other.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())

    assert all(torch.equal(one, two) for one, two in zip(other.parameters(), ours.parameters(), strict=True))


class Input(nn.Module):
    """The network behind lists of two groups, and columns that differ from sample to sample."""

    columns = Columns(
        others=(slice(2, 4), slice(9, 10)), groups=((slice(0, 2), slice(4, 7)), (slice(7, 9), slice(10, 12)))
    )
    rows = (torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 1, 1]))

    def __init__(self, network: CrossLayers) -> None:
        super().__init__()
        self.network = network
        torch.manual_seed(7)
        self.others = nn.Parameter(torch.randn(6, 3))
        self.lists = nn.ParameterList([torch.randn(3, 5), torch.randn(2, 4)])

    def forward(self, *, once: bool) -> torch.Tensor:
        """Return the network's output of the copies, multiplying each list once or all copies."""
        x = self.others.new_zeros(6, COLUMNS)
        copies = [each.index_select(0, rows) for each, rows in zip(self.lists, self.rows, strict=True)]
        for values, places in ((self.others, self.columns.others), *zip(copies, self.columns.groups, strict=True)):
            parts = torch.split(values, [place.stop - place.start for place in places], dim=1)
            for place, part in zip(places, parts, strict=True):
                x = torch.cat([x[:, : place.start], part, x[:, place.stop :]], dim=1)
        distinct = DistinctInputs(columns=self.columns, pooled=list(self.lists), rows=self.rows) if once else None
        found: torch.Tensor = self.network(x, distinct)
        return found


def test_lists_that_are_multiplied_once_give_the_values_and_gradients_of_all_copies() -> None:
    """In FP64 to 12 digits: columns of two groups in several places, and all weights."""
    module = Input(pair()[0]).double()
    weights = list(module.parameters())
    upstream = torch.randn(6, COLUMNS, dtype=torch.float64)

    expected, found = module(once=False), module(once=True)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    wanted = torch.autograd.grad(expected, weights, upstream)
    torch.testing.assert_close(torch.autograd.grad(found, weights, upstream), wanted, rtol=1e-12, atol=1e-12)


def test_copies_of_lists_that_are_multiplied_once_are_not_multiplied() -> None:
    """Other values in their columns change nothing of the product."""
    module = Input(pair()[0])
    distinct = DistinctInputs(columns=module.columns, pooled=list(module.lists), rows=module.rows)
    x = torch.randn(6, COLUMNS)
    others = x.clone()
    for place in (place for places in module.columns.groups for place in places):
        others[:, place] = 7.0

    found = [module.network.layers[0](torch.ones_like(x), each, distinct) - each for each in (x, others)]

    torch.testing.assert_close(found[0], found[1])


def test_lists_that_are_multiplied_once_follow_autocast() -> None:
    """Products in BF16, within its rounding of those in FP32; gradients have the types of their weights."""
    module = Input(pair()[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(once=True)

    torch.testing.assert_close(found.float(), module(once=False), rtol=0.05, atol=0.05)
    torch.autograd.backward(found.float().sum())
    assert {weight.grad.dtype for weight in module.parameters() if weight.grad is not None} == {torch.float32}
