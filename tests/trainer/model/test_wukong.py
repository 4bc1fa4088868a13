"""Wukong's layers, next to their formula written for one sample after the other, and on the planted signal."""

import numpy as np
import pytest
import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.job.model import Model, WukongLayers
from neuroshard_trainer.data.samples import Samples, features_of
from neuroshard_trainer.data.source import BLOCK_SAMPLES
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.model.cross_network import saved_name
from neuroshard_trainer.model.dlrm import RecommendationModel
from neuroshard_trainer.model.wukong import Wukong, WukongLayer
from support import builders
from support.trainer.trainer_builders import TABLES, job_data
from torch import nn
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES, WIDTH = 3, 4
SIZE = WukongLayers(num_layers=3, num_interactions=3, low_rank_dim=2, layer_sizes=(7,))


def layer_of(num_inputs: int) -> WukongLayer:
    """Return a layer whose norms scale and shift."""
    torch.manual_seed(num_inputs)
    layer = WukongLayer(num_inputs, WIDTH, SIZE)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.5)
    return layer


def normed(vector: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    """Return a vector of mean 0 and variance 1, scaled and shifted."""
    spread = ((vector - vector.mean()) ** 2).mean()
    return (vector - vector.mean()) / (spread + 1e-5).sqrt() * norm.weight + norm.bias


def expected(layer: WukongLayer, vectors: torch.Tensor) -> torch.Tensor:
    """Return the layer's value for one sample from dot products of all pairs, one by one."""
    num_inputs = len(vectors)
    products = torch.zeros(num_inputs, SIZE.low_rank_dim)
    for one in range(num_inputs):
        for other in range(num_inputs):
            products[one] += vectors[one].dot(vectors[other]) * layer.projection[other]
    first, _, last = layer.mlp
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    hidden = first.weight @ normed(products.flatten(), layer.products_norm) + first.bias
    factored = last.weight @ hidden.clamp(min=0) + last.bias
    rows = [factored[WIDTH * index : WIDTH * (index + 1)] for index in range(SIZE.num_interactions)]
    rows += [(weights[:, None] * vectors).sum(dim=0) for weights in layer.combination]
    kept = vectors if layer.shortcut is None else layer.shortcut @ vectors
    return torch.stack([normed(row + other, layer.output_norm) for row, other in zip(rows, kept, strict=True)])


@pytest.mark.parametrize("num_inputs", [5, 6], ids=["projected to six vectors", "six as before"])
def test_a_layer_is_the_papers_formula(num_inputs: int) -> None:
    """Normed, the factorization machine's vectors above the linear combinations, and what went in added to them."""
    layer = layer_of(num_inputs)
    x = torch.randn(SAMPLES, num_inputs, WIDTH)

    assert (layer.shortcut is None) == (num_inputs == SIZE.num_outputs)
    torch.testing.assert_close(layer(x), torch.stack([expected(layer, vectors) for vectors in x]))


def test_all_layers_but_the_first_are_of_one_size() -> None:
    """Each takes what the one before returns, and none has a name that state dicts of cross networks change."""
    stack = Wukong(5, WIDTH, SIZE)

    assert stack(torch.randn(SAMPLES, 5, WIDTH)).shape == (SAMPLES, SIZE.num_outputs, WIDTH)
    assert [layer.shortcut is None for layer in stack.layers] == [False, True, True]
    assert all(saved_name(name) == name for name, _ in stack.named_parameters())


def test_the_planted_signal_is_learned() -> None:
    """After 15 steps the loss of new samples is well below the entropy of their labels."""
    size = {"numLayers": 2, "numInteractions": 4, "lowRankDim": 4, "layerSizes": [32]}
    data = job_data(model={"architecture": "Wukong", "wukong": size})["spec"]["model"]
    torch.manual_seed(0)
    model = RecommendationModel(validated(Model, data, where="spec.model"), TABLES)
    model.tables = model.tables.to_empty(device="cpu")
    for weight in model.tables.parameters():
        nn.init.uniform_(weight, -0.1, 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    features = features_of(TABLES)
    source = SyntheticSource(builders.table_set(*TABLES), features, num_dense=3, num_samples=3 * BLOCK_SAMPLES, seed=0)

    def logits_of(samples: Samples) -> torch.Tensor:
        lookups = [samples.lookups[feature.name] for feature in features]
        found: torch.Tensor = model(
            torch.from_numpy(samples.dense),
            KeyedJaggedTensor(
                keys=[feature.name for feature in features],
                values=torch.from_numpy(np.concatenate([each.values for each in lookups])),
                lengths=torch.from_numpy(np.concatenate([each.lengths for each in lookups])),
            ),
        )
        return found

    for step in range(15):
        samples = source.read(step % 2)
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(logits_of(samples), torch.from_numpy(samples.labels))
        torch.autograd.backward(loss)
        optimizer.step()

    unseen = source.read(2)
    labels = torch.from_numpy(unseen.labels)
    with torch.no_grad():
        loss = binary_cross_entropy_with_logits(logits_of(unseen), labels)
    assert float(loss / binary_cross_entropy(labels.mean().expand_as(labels), labels)) < 0.9
