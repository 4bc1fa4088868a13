"""The model next to TorchRec's own."""

from typing import Any, cast

import pytest
import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.documents.trainable_names import is_trainable_name
from neuroshard_api.job.model import Model
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.model.dlrm import DotProducts, RecommendationModel, runs_of
from support import builders
from torch import nn
from torchrec.models.dlrm import DLRM, DLRM_DCN
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

SAMPLES = 6


def model_of(*widths: int, **fields: Any) -> RecommendationModel:
    """Return a model with tables t0, t1, ... of these widths, in memory."""
    tables = [builders.table(f"t{index}", num_embeddings=10, embedding_dim=width) for index, width in enumerate(widths)]
    inline = [{"name": table.name, "numEmbeddings": 10, "embeddingDim": table.embedding_dim} for table in tables]
    sizes = {"numDenseFeatures": 3, "denseArchLayerSizes": [8], "overArchLayerSizes": [5]}
    settings = validated(Model, {"embeddingTables": inline, **sizes, **fields}, where="spec.model")
    torch.manual_seed(0)
    made = RecommendationModel(settings, tables)
    made.tables = made.tables.to_empty(device="cpu")
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.3)
    return made


def inputs(num_tables: int) -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """Return dense features and two lookups of each table."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SAMPLES, 3, generator=generator), KeyedJaggedTensor(
        keys=[f"t{index}" for index in range(num_tables)],
        values=torch.randint(10, (2 * SAMPLES * num_tables,), generator=generator),
        lengths=torch.full((SAMPLES * num_tables,), 2),
    )


def torchrec_tables() -> EmbeddingBagCollection:
    """Return two tables of width 8."""
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=name, num_embeddings=10, embedding_dim=8, feature_names=[name])
            for name in ("t0", "t1")
        ]
    )


@pytest.mark.parametrize("architecture", ["DLRM", "DCNv2"])
def test_equal_widths_give_torchrecs_model(architecture: str) -> None:
    """With the same weights the logits are the same."""
    if architecture == "DLRM":
        ours = model_of(8, 8)
        theirs: nn.Module = DLRM(torchrec_tables(), 3, [8, 8], [5, 1])
    else:
        ours = model_of(8, 8, architecture="DCNv2", crossNetwork={"numLayers": 2, "lowRankDim": 4})
        theirs = DLRM_DCN(torchrec_tables(), 3, [8, 8], [5, 1], dcn_num_layers=2, dcn_low_rank_dim=4)
    wanted = dict(theirs.state_dict())
    parts = {
        "tables.": "sparse_arch.embedding_bag_collection.",
        "dense_arch.": "dense_arch.",
        "interaction.interaction.": "inter_arch.crossnet." if architecture == "DCNv2" else "inter_arch.",
        "over_arch.": "over_arch.",
    }
    for name, weight in ours.state_dict().items():
        prefix = next(prefix for prefix in parts if name.startswith(prefix))
        wanted[parts[prefix] + name.removeprefix(prefix)] = weight
    theirs.load_state_dict(wanted)

    dense, lookups = inputs(2)

    torch.testing.assert_close(ours(dense, lookups), theirs(dense, lookups).squeeze(1))


@pytest.mark.parametrize("architecture", ["DLRM", "DCNv2", "Wukong"])
def test_tables_of_several_widths_are_joined(architecture: str) -> None:
    """Each of them, and the dense features, decide the logits."""
    made = model_of(16, 4, 8, architecture=architecture)
    dense, lookups = inputs(3)
    dense.requires_grad_()

    logits = made(dense, lookups)
    logits.sum().backward()

    assert logits.shape == (SAMPLES,)
    assert dense.grad is not None
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in made.tables.parameters())


@pytest.mark.parametrize("architecture", ["DLRM", "DCNv2", "Wukong"])
@pytest.mark.parametrize("widths", [(8,), (16, 4, 8)])
def test_a_model_without_dense_features_joins_embeddings_alone(architecture: str, widths: tuple[int, ...]) -> None:
    """One table is enough; every table decides the logits, and no layer is without an input."""
    made = model_of(*widths, architecture=architecture, numDenseFeatures=0)
    dense, lookups = torch.empty(SAMPLES, 0), inputs(len(widths))[1]

    logits = made(dense, lookups)
    logits.sum().backward()

    assert logits.shape == (SAMPLES,)
    assert not any(name.startswith("dense_arch") for name, _ in made.named_parameters())
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in made.tables.parameters())


def test_dlrm_without_dense_features_has_the_embeddings_next_to_their_dot_products() -> None:
    """Each pair once, and each embedding whole."""
    made = model_of(4, 4, 4, numDenseFeatures=0)
    first, second, third = torch.randn(3, SAMPLES, 4, generator=torch.Generator().manual_seed(2)).unbind()

    joined = made.interaction(torch.empty(SAMPLES, 0), {"t0": first, "t1": second, "t2": third})

    products = [(one * other).sum(dim=1) for one, other in ((first, second), (first, third), (second, third))]
    torch.testing.assert_close(joined, torch.cat([first, torch.stack(products, dim=1), second, third], dim=1))


def test_a_sequence_is_refused() -> None:
    """It has no vector per feature that could be joined."""
    table = builders.table("clicks", num_embeddings=10, embedding_dim=4, pooling=Pooling.NONE)
    settings = validated(
        Model, {"embeddingTables": [{"name": "t", "numEmbeddings": 10, "embeddingDim": 4}]}, where="spec.model"
    )
    with pytest.raises(InputError, match="table 'clicks' has pooling NONE, and this trainer joins one vector of each"):
        RecommendationModel(settings, [table])


def test_all_names_that_torch_has_other_uses_for_are_known() -> None:
    """Before a model is built, where there is no torch."""
    assert [name for name in dir(nn.ModuleDict()) if name[0] != "_" and is_trainable_name(name)] == []


@pytest.mark.parametrize("name", ["items", "keys", "training", "user.id"])
def test_a_table_name_that_torch_has_other_uses_for_is_refused(name: str) -> None:
    """Named, before TorchRec stumbles over it."""
    table = builders.table(name, num_embeddings=10, embedding_dim=4)
    settings = validated(
        Model, {"embeddingTables": [{"name": "t", "numEmbeddings": 10, "embeddingDim": 4}]}, where="spec.model"
    )
    with pytest.raises(InputError, match=f"table '{name}' cannot be trained under this name"):
        RecommendationModel(settings, [table])


@pytest.mark.parametrize("num_features", [1, 4])
def test_the_gradient_of_dot_products_is_that_of_autograd(num_features: int) -> None:
    """In training it is one product of a symmetric matrix; in evaluation, autograd's own. Logits are equal in both."""
    torch.manual_seed(0)
    pairs = cast("nn.Module", model_of(*[8] * num_features).interaction.interaction)
    inputs = [torch.randn(5, 8, dtype=torch.float64, requires_grad=True) for _ in range(num_features + 1)]

    def found() -> tuple[torch.Tensor, ...]:
        joined = pairs(inputs)
        return (joined, *torch.autograd.grad(joined.square().sum(), inputs))

    joined, *gradients = found()
    pairs.eval()
    wanted, *wanted_gradients = found()
    assert torch.equal(joined, wanted)
    torch.testing.assert_close(gradients, wanted_gradients)


def test_dot_products_in_a_narrow_type_have_gradients_of_the_inputs_type() -> None:
    """As autocast multiplies them."""
    pairs = cast("nn.Module", model_of(8).interaction.interaction)
    inputs = [torch.randn(5, 8, requires_grad=True) for _ in range(2)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        joined = pairs(inputs)
    joined.float().sum().backward()

    assert [each.grad.dtype for each in inputs if each.grad is not None] == [torch.float32] * 2


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [2, 0, 3, 1]])
def test_dot_products_of_features_side_by_side_are_those_of_each_by_itself(order: list[int]) -> None:
    """Whatever the order of a collection's columns, and what else is between them; so are the gradients."""
    interaction = cast("DotProducts", model_of(8, 8, 8, 8).interaction)
    keys = [f"t{place}" for place in order]
    columns = torch.randn(5, 5 * 8, requires_grad=True)
    dense = torch.randn(5, 8, requires_grad=True)
    pooled = KeyedTensor(keys=[*keys[:2], "other", *keys[2:]], length_per_key=[8] * 5, values=columns)

    def found(joined: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (joined, *torch.autograd.grad(joined.square().sum(), [dense, columns]))

    runs = runs_of(pooled, [interaction.keys, ["other"]])[0]
    pairs = interaction.interaction
    wanted = found(pairs([dense, *(pooled[key] for key in interaction.keys)]))
    torch.testing.assert_close(found(pairs([dense], runs)), wanted)
    assert len(runs) == 2
