"""The cross network layer by layer, next to TorchRec's, which keeps all layers' weights in one module."""

import torch
from neuroshard_trainer.model.cross_network import CrossLayers, saved_name
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
