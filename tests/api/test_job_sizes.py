"""An elastic job on each of its numbers of nodes, and a job whose plan chooses its batch."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.levers import LeverName
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.sizes import at_batch_size, batch_sizes, sized, sizes_of, under_plan
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import inline_tables
from support import builders


def job(most: int, least: int, samples: int, **fields: str) -> DLRMTrainingJob:
    """Return an elastic job with that many samples of each device on all nodes."""
    data = builders.job_data(
        trainer={"numNodes": most}, experimental={"elastic": {"minNodes": least, **fields}}, training={"seed": 3}
    )
    data["spec"]["model"]["batchSizePerDevice"] = samples
    return DLRMTrainingJob.from_data(data)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 1000))
def test_every_size_has_the_samples_of_a_step(most: int, least: int, factor: int) -> None:
    """In whole samples of each device, within the bounds, with both bounds among the sizes."""
    least = min(least, most)
    whole = job(most, least, least * factor)
    sizes = sizes_of(whole.spec)

    assert {least, most} <= set(sizes) <= set(range(least, most + 1))
    assert list(sizes) == sorted(set(sizes))
    for nodes in sizes:
        spec = sized(whole, nodes).spec
        assert spec.trainer.num_nodes == nodes
        assert spec.model.batch_size_per_device * nodes == whole.spec.model.batch_size_per_device * most


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_job_of_a_size_is_a_job(most: int, nodes: int) -> None:
    """Pods read it by the rules that the user's was read by, and everything else of it is the user's."""
    nodes = min(nodes, most)
    whole = job(most, 1, 840, batch="PerDevice", scaleLearningRate="Linear")
    found = sized(whole, nodes)
    rates = (found.spec.training.embedding_learning_rate, found.spec.training.dense_learning_rate)

    assert DLRMTrainingJob.from_data(found.model_dump(mode="json", by_alias=True, exclude_none=True)) == found
    assert sizes_of(whole.spec) == tuple(range(1, most + 1))
    assert [round(Decimal(rate) * most / nodes, 9) for rate in rates] == [Decimal("0.02"), Decimal("0.001")]
    assert found.spec.model == whole.spec.model
    assert found.spec.training.seed == 3


def test_sizes_that_do_not_divide_the_samples_of_a_step_are_left_out() -> None:
    """4,096 samples are whole numbers on one, two, and four nodes, and none on three."""
    assert sizes_of(job(4, 1, 1024).spec) == (1, 2, 4)


def test_variants_keep_their_share_of_the_learning_rate() -> None:
    """A variant's own rate is scaled as that of the job is."""
    data = builders.job_data(
        trainer={"numNodes": 2},
        variants=[{"name": "a"}, {"name": "b", "training": {"denseLearningRate": "0.01"}}],
        experimental={"elastic": {"minNodes": 1, "batch": "PerDevice", "scaleLearningRate": "Linear"}},
    )
    one = sized(DLRMTrainingJob.from_data(data), 1).spec
    assert one.variants is not None

    assert one.training.dense_learning_rate == "0.0005"
    assert [each.training.dense_learning_rate for each in one.variants] == [None, "0.005"]


@pytest.mark.parametrize(
    ("batch", "refused"),
    [("Global", (LeverName.NODES, LeverName.BATCH_SIZE)), ("PerDevice", (LeverName.NODES,))],
)
def test_a_plan_of_an_elastic_job_names_no_field_that_is_of_its_most_nodes(
    batch: str, refused: tuple[LeverName, ...]
) -> None:
    """The cluster decides on the nodes, and a plan may be for fewer, with another batch for each device."""
    asked = sized(job(4, 2, 1024, batch=batch), 2)
    tables = inline_tables(asked)
    assert tables is not None

    assert plan_request(asked, tables=tables, topology=builders.topology(4, num_nodes=2)).refused_levers == refused


def test_a_job_that_is_not_elastic_has_its_number_of_nodes() -> None:
    """And is the same job there."""
    rigid = builders.job(trainer={"numNodes": 3})

    assert sizes_of(rigid.spec) == (3,)
    assert sized(rigid, 3) is rigid


def chosen(**spec: Any) -> DLRMTrainingJob:
    """Return a job whose plan chooses its batch."""
    data = builders.job_data(**spec)
    data["spec"]["model"]["batchSizePerDevice"] = "Auto"
    return DLRMTrainingJob.from_data(data)


def test_a_plan_chooses_among_powers_of_two_and_half_steps() -> None:
    """A job that gives its batch has that alone."""
    sizes = batch_sizes(chosen().spec)

    assert sizes[:5] == (512, 768, 1024, 1536, 2048)
    assert sizes[-1] == 65_536
    assert batch_sizes(builders.job().spec) == (8192,)


@pytest.mark.parametrize(("samples", "most"), [(100 * 2 * 2048, 2048), (1000, 512), (10**9, 65_536)])
def test_an_epoch_keeps_a_hundred_steps(samples: int, most: int) -> None:
    """Where the job says how many samples it has, here for two devices; the smallest batch is always there."""
    spec = chosen(data={"format": "Synthetic", "numSamples": samples}, trainer={"numNodes": 2}).spec

    assert batch_sizes(spec)[-1] == most


def test_learning_rates_follow_the_chosen_batch_linearly() -> None:
    """They are given for 8,192 samples per device; a job that gives its batch keeps them."""
    found = at_batch_size(chosen(training={"denseLearningRate": "0.004"}), 2048).spec

    assert found.model.batch_size_per_device == found.model.samples_per_device == 2048
    assert (found.training.embedding_learning_rate, found.training.dense_learning_rate) == ("0.005", "0.001")
    given = builders.job()
    assert at_batch_size(given, 2048) is given


def test_a_job_is_trained_with_the_batch_of_its_plan() -> None:
    """And is a job as the user would have written it."""
    plan = builders.plan(builders.request(batch_size_per_device=1536))

    found = under_plan(chosen(), plan)

    assert found.spec.model.samples_per_device == 1536
    assert DLRMTrainingJob.from_data(found.model_dump(mode="json", by_alias=True, exclude_none=True)) == found
