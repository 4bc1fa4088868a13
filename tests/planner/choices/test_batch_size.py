"""The samples per device where the plan chooses them: fast, fitting, and of nearly equals the smallest."""

from typing import Any

import pytest
from neuroshard_api.documents.batch_choice import BatchChoices
from neuroshard_api.documents.communication import CommunicationChoices, WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses, DenseProfile, DenseUnit
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, Constraints, MemorySettings, PlanRequest
from neuroshard_api.documents.tables import DataType
from neuroshard_planner import planning
from neuroshard_planner.errors import InfeasibleError, RequestError
from support.builders import GIB, QUICK, dense_profile, request, tables, topology
from support.planner.searches import planned

MEMBERS = tables(8, num_embeddings=1_000_000, embedding_dim=64)
TYPES = Constraints(data_types=(DataType.FP32, DataType.FP16))
WIRE = CommunicationChoices(forward=(WireType.FP16,), backward=(WireType.FP16,))
SIZES = (512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)


def counted(size: int, *, kib_per_sample: int = 64, operations: int = 200) -> DenseProfile:
    """Return a dense part whose work and activations are in proportion to the batch, and whose launches are not."""
    activations, parameters = kib_per_sample * 1024 * size, 2**22
    one = DensePass(operations=operations, products=8, moved_bytes=activations)
    return dense_profile(
        *MEMBERS,
        batch_size_per_device=size,
        working_bytes=activations,
        passes=DensePasses(forward=one, backward=one, optimizer=one, num_tensors=16),
        units=(
            DenseUnit(
                module="over_arch",
                num_parameters=parameters,
                forward_flops=2 * parameters * size,
                backward_flops=4 * parameters * size,
                activation_bytes=activations // 2,
                input_bytes=2**20,
                output_bytes=2**20,
                transient_bytes=2**21,
            ),
        ),
    )


def asked(*sizes: int, memory_bytes: int = 80 * GIB, kib_per_sample: int = 64, operations: int = 200) -> PlanRequest:
    """Return a request whose plan chooses among these sizes."""
    return request(
        *MEMBERS,
        topology=topology(memory_bytes=memory_bytes),
        memory=MemorySettings(reserve_fraction=0.0),
        algorithm=Algorithm.SIZE_GREEDY,
        batch_choices=BatchChoices(sizes=sizes),
    ).with_dense_of(
        [counted(size, kib_per_sample=kib_per_sample, operations=operations) for size in sizes], where="dense.json"
    )


def alone(whole: PlanRequest, size: int) -> Plan:
    """Return the plan of the request at one size."""
    choices = whole.batch_choices
    assert choices is not None
    assert choices.dense is not None
    return planned(whole.with_batch(size, choices.dense[choices.sizes.index(size)]))


def test_the_smallest_within_two_percent_of_the_fastest_is_chosen() -> None:
    """Where memory does not bind; the plan is that of a request with the number, but for what it says of the choice."""
    whole = asked(*SIZES)

    found = planned(whole)

    speeds = {size: alone(whole, size).samples_per_second for size in SIZES}
    enough = 0.98 * max(speeds.values())
    chosen = found.request.batch_size_per_device
    assert chosen == min(size for size, speed in speeds.items() if speed >= enough)
    assert found.model_copy(update={"batch": None}) == alone(whole, chosen)
    assert found.batch is not None
    assert {each.samples_per_device: each.samples_per_second for each in found.batch.tried}.items() <= speeds.items()


def test_the_largest_that_fits_is_chosen_where_launches_decide_the_step() -> None:
    """Half steps count; those above are noted with the reason."""
    whole = asked(*SIZES, memory_bytes=5 * GIB, kib_per_sample=1024, operations=20_000)

    found = planned(whole)

    assert found.request.batch_size_per_device == 3072
    assert found.batch is not None
    problems = {each.samples_per_device: each.problem for each in found.batch.tried}
    assert problems[3072] is None
    assert "no memory is left for shards" in (problems[4096] or "")
    assert 8192 not in problems
    with pytest.raises(InfeasibleError):
        alone(whole, 4096)


def test_where_the_smallest_does_not_fit_nothing_is_planned() -> None:
    """The message names the size."""
    with pytest.raises(InfeasibleError, match="at 512 samples per device, the fewest"):
        planned(asked(*SIZES, memory_bytes=GIB, kib_per_sample=16_384))


def test_without_a_counted_dense_part_no_batch_is_chosen() -> None:
    """It would be the largest, whatever the activations need."""
    uncounted = request(*MEMBERS, batch_choices=BatchChoices(sizes=SIZES))

    with pytest.raises(RequestError, match="was not counted; hint: count it"):
        planned(uncounted)


def test_the_searches_of_sizes_and_of_forms_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size is searched once, and further forms of the plan at the chosen size alone."""
    sizes = (2048, 4096, 8192)
    permitted = {"algorithm": Algorithm.NEUROSHARD, "constraints": TYPES, "communication": WIRE, "search": QUICK}
    whole = asked(*sizes).model_copy(update=permitted)
    searched: list[PlanRequest] = []
    search = planning.searched

    def counted(of: PlanRequest, *arguments: Any, **options: Any) -> Plan:
        searched.append(of)
        return search(of, *arguments, **options)

    monkeypatch.setattr(planning, "searched", counted)
    found = planned(whole)

    chosen = found.request.batch_size_per_device
    assert found.batch is not None
    tried = [each.samples_per_device for each in found.batch.tried]
    others = [each.batch_size_per_device for each in searched if each.batch_size_per_device != chosen]
    assert sorted(others) == [size for size in tried if size != chosen]
    assert found.model_copy(update={"batch": None}) == alone(whole, chosen)
    assert found.choices


def test_equal_requests_give_equal_plans() -> None:
    """Byte for byte; and the plan's own request gives its placement."""
    first, second = planned(asked(*SIZES)), planned(asked(*SIZES))

    assert first.to_json() == second.to_json()
    assert Plan.from_data(first.model_dump(mode="json", exclude_none=True)) == first
    assert planned(first.request).placement_sha256 == first.placement_sha256
