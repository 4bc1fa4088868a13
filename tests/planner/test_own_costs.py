"""A cost model of the user's own in three methods."""

import pickle

import numpy as np
import pytest
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.own_costs import OwnCosts
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.checks import plan_problems
from support.builders import request, table

MS_PER_LOOKUP = 1e-5


class Lookups:
    """Time is lookups; backward takes twice as long; columns travel at a fixed rate."""

    def demands(self, shards: ShardArrays) -> FloatArray:
        """Return lookups."""
        return shards.lookups[:, None]

    def compute_ms(self, sums: FloatArray) -> FloatArray:
        """Return times in proportion."""
        times: FloatArray = sums * MS_PER_LOOKUP * np.array([1.0, 2.0])
        return times

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:  # noqa: ARG002 - no other matters
        """Return a microsecond per column."""
        return np.stack((max_dim_sums, max_dim_sums), axis=-1) * 1e-3


def own_costs(version: str = "1", base: str = "h100-80gb") -> OwnCosts:
    """Return the cost model for a simulated device."""
    return OwnCosts(
        Lookups(),
        base=bundled_bundle(base),
        name="lookups",
        version=version,
        compute_mape=0.5,
        communication_mape=0.25,
    )


def test_a_plan_is_made_and_priced_by_the_three_methods() -> None:
    """Four tables of 1, 2, 3, and 4 lookups on two devices: five on each, and the sums by hand."""
    tables = [table(f"t{count}", embedding_dim=4, pooling_factor=float(count)) for count in (1, 2, 3, 4)]
    found = plan(request(*tables, num_devices=2, batch_size_per_device=512), bundle=own_costs())

    assert plan_problems(found) == []
    compute = 5 * 1024 * MS_PER_LOOKUP
    assert found.predicted.devices[0].forward_compute_ms == pytest.approx(compute)
    assert found.predicted.devices[0].backward_compute_ms == pytest.approx(2 * compute)
    assert found.predicted.devices[0].forward_communication_ms == pytest.approx(8e-3, rel=1e-3)
    assert found.lower_bound_ms <= found.predicted.total_ms
    assert found.bundle.name == "lookups"
    assert (found.bundle.compute_mape, found.bundle.communication_mape) == (0.5, 0.25)
    assert found.warnings == ("costs are by lookups, a cost model of the user's own, whose range is not known",)


def test_versions_of_a_model_are_told_apart() -> None:
    """By the hash that caches and explanations look at; its base prices collectives, so that it counts too."""
    models = own_costs("1"), own_costs("2"), own_costs("1", base="a100-80gb")
    assert len({each.manifest.weights_sha256 for each in models}) == 3


def test_a_model_goes_to_another_process_whole() -> None:
    """Its methods and its base are in the pickle, and it is equal to itself alone."""
    model = own_costs()
    sent = pickle.loads(pickle.dumps(model))  # noqa: S301 - of this test

    assert isinstance(sent.costs, Lookups)
    assert sent.manifest == model.manifest
    assert len({model, sent}) == 2
