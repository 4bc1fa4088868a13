"""Hypothesis strategies: any valid document, from the smallest to the largest numbers."""

from typing import Any

from hypothesis import strategies as st
from neuroshard_api.documents.request import (
    Algorithm,
    Constraints,
    MemorySettings,
    PlanRequest,
    SearchSettings,
    TableConstraints,
)
from neuroshard_api.documents.tables import REUSE_BINS, DataType, IdRule, Optimizer, Table, TableSet
from neuroshard_api.documents.topology import Link, Rack, Topology, equal_racks
from neuroshard_api.sharding.kernels import TRAINING_KERNELS
from support import builders

names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,20}", fullmatch=True)
labels = st.text(min_size=1, max_size=20)
widths = st.integers(1, 2048).map(lambda quarter: quarter * 4)
histograms = st.lists(st.floats(0.01, 1.0), min_size=REUSE_BINS, max_size=REUSE_BINS).map(
    lambda weights: tuple(weight / sum(weights) for weight in weights)
)
skews: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({}),
    st.fixed_dictionaries({"reuse_histogram": histograms}),
    st.fixed_dictionaries({"zipf_exponent": st.floats(0.0, 4.0)}),
)


@st.composite
def tables(draw: st.DrawFn, *, optimizer: Optimizer | None = None) -> Table:
    """Draw a table with up to 10^13 rows, of a type that GPUs train with the optimizer."""
    return Table(
        name=draw(names),
        num_embeddings=draw(st.integers(1, 10**13)),
        embedding_dim=draw(widths),
        pooling_factor=draw(st.floats(0.001, 1e5)),
        data_type=draw(st.sampled_from(trained_types(optimizer))),
        feature_names=tuple(draw(st.lists(labels, max_size=3, unique=True))),
        id_rule=draw(st.none() | st.sampled_from(IdRule)),
        colocation_group=draw(st.none() | labels),
        **draw(skews),
    )


def trained_types(optimizer: Optimizer | None) -> list[DataType]:
    """Return the types of weights that GPUs train with an optimizer. None: with any."""
    return list(TRAINING_KERNELS["cuda"].types_with(optimizer))


@st.composite
def table_sets(draw: st.DrawFn, *, optimizer: Optimizer | None = None) -> TableSet:
    """Draw a set of up to four tables with distinct names, of types that GPUs train with the optimizer."""
    return TableSet(
        name=draw(labels),
        description=draw(st.none() | st.text()),
        global_batch_size=draw(st.none() | st.integers(1, 2**31)),
        optimizer=draw(st.none() | st.sampled_from(Optimizer)),
        zipf_exponent=draw(st.none() | st.floats(0.0, 4.0)),
        tables=tuple(
            draw(st.lists(tables(optimizer=optimizer), min_size=1, max_size=4, unique_by=lambda table: table.name))
        ),
    )


links = st.builds(
    Link, bandwidth_bytes_per_second=st.floats(1.0, 1e13), latency_seconds=st.floats(0.0, 1.0, allow_subnormal=False)
)
topologies = st.builds(
    Topology,
    num_nodes=st.integers(1, 4),
    devices_per_node=st.integers(1, 16),
    device=st.builds(builders.device_type, memory_bytes=st.integers(1, 2**50), cache_bytes=st.integers(0, 2**40)),
    intra_node=links,
    inter_node=links,
)
topologies = st.builds(
    lambda topology, rack: topology.model_copy(update={"rack": equal_racks(rack, topology.num_nodes)}),
    topologies,
    st.none() | st.builds(Rack, num_nodes=st.integers(2, 4), link=links),
)
device_lists = st.lists(st.integers(0, 1024), min_size=1, max_size=4).map(tuple)
constraints = st.builds(
    Constraints,
    max_memory_bytes_per_device=st.none() | st.integers(1, 2**50),
    forbidden_devices=device_lists,
    max_shards_per_table=st.none() | st.integers(1, 64),
    min_shard_width=widths,
    colocate=st.lists(st.lists(names, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple),
    tables=st.dictionaries(
        names,
        st.builds(
            TableConstraints,
            devices=st.none() | device_lists,
            max_shards=st.none() | st.integers(1, 64),
            min_shard_width=st.none() | widths,
        ),
        max_size=3,
    ),
)
requests = st.sampled_from(Optimizer).flatmap(
    lambda optimizer: st.builds(
        PlanRequest,
        tables=table_sets(optimizer=optimizer),
        topology=topologies,
        batch_size_per_device=st.integers(1, 2**24),
        optimizer=st.just(optimizer),
        memory=st.builds(MemorySettings, dense_bytes=st.integers(0, 2**50), reserve_fraction=st.floats(0.0, 0.99)),
        constraints=constraints,
        search=st.builds(
            SearchSettings, seed=st.integers(0, 2**63 - 1), work_budget=st.none() | st.integers(1, 2**63 - 1)
        ),
        algorithm=st.sampled_from(Algorithm),
    )
)
