from dataclasses import replace

import pytest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_report.html.device_map import MAX_BLOCKS, common_prefix, copies_block, device_lanes
from neuroshard_report.summary import summarize
from support.builders import table
from support.planner.plan_builders import plan_of


def test_every_lane_is_as_wide_as_the_widest_device() -> None:
    """Columns drawn and columns left blank sum to the same for all devices, so that widths compare."""
    summary = summarize(plan_of())
    lanes = device_lanes(summary.tables, summary.devices)

    widths = {sum(block.num_columns for block in lane.blocks) + lane.free_columns for lane in lanes}
    assert len(widths) == 1


def test_shards_too_many_to_see_become_one_block() -> None:
    """The block says how many they are and keeps their width."""
    summary = summarize(
        plan_of(*(table(f"t{index}") for index in range(MAX_BLOCKS + 30)), num_devices=1, split_every=0)
    )
    (lane,) = device_lanes(summary.tables, summary.devices)

    assert len(lane.blocks) == MAX_BLOCKS + 1
    assert lane.blocks[-1].label == "+30"
    assert sum(block.num_columns for block in lane.blocks) == lane.device.cost.embedding_dim_sum


def test_colour_follows_the_bytes_read() -> None:
    """The most read table is the deepest, the least read the lightest."""
    summary = summarize(plan_of(table("cold", pooling_factor=1.0), table("hot", pooling_factor=100.0), num_devices=1))
    (lane,) = device_lanes(summary.tables, summary.devices)
    heats = {block.label: block.heat for block in lane.blocks}

    assert heats["hot"] == 5
    assert heats["cold"] == 0


def test_shards_of_split_tables_are_marked() -> None:
    """A reader sees at once that the rest is elsewhere."""
    summary = summarize(plan_of(table("split"), num_devices=2))
    lanes = device_lanes(summary.tables, summary.devices)

    assert all(block.is_part for lane in lanes for block in lane.blocks)


def test_copies_are_one_block_of_all_devices() -> None:
    """They are in no lane, and their names are in the block's title."""
    plan = plan_of(table("small"), table("large", num_embeddings=10**6), num_devices=2, split_every=0)
    copied = plan.tables[0].model_copy(update={"sharding_type": ShardingType.DATA_PARALLEL})
    summary = summarize(plan)
    tables = (replace(summary.tables[0], placement=copied), *summary.tables[1:])
    block = copies_block(tables)

    assert {each.label for lane in device_lanes(tables, summary.devices) for each in lane.blocks} == {"large"}
    assert block is not None
    assert (block.title, block.label.partition(":")[0]) == ("small", "1 copied table")


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (("feature_10", "feature_11"), "feature_"),
        (("t1", "t2"), ""),
        (("item", "item_last"), ""),
        (("user", "item"), ""),
    ],
)
def test_labels_leave_out_the_beginning_of_all_names(names: tuple[str, ...], prefix: str) -> None:
    """Unless it is short, or a whole name."""
    assert common_prefix(summarize(plan_of(*map(table, names), num_devices=1)).tables) == prefix
