"""Narrow types between four ranks: bytes, errors, and the way back to exact exchange."""

from pathlib import Path
from typing import Any

import pytest
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes]
LIMITS = {"FP32": 0.0, "FP16": 2.0**-11, "INT8": 32**0.5 * 2 / 510, "MX4": 0.25}
LIMITS |= {f"TOP{kept}": (1 - kept / 128) ** 0.5 + 2.0**-8 for kept in (32, 16, 8)}
"""Largest loss relative to the norm that rounding allows: half a unit of FP16's last place; half of 1/255 of a group's
range, which is twice its largest value; half of the distance of two numbers of MX4, which have one bit of mantissa;
all but the largest values of a group, if all were alike, and what BF16 rounds of those."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, ranks: RankServer) -> list[dict[str, Any]]:
    """What each of four ranks found, by types."""
    folder = tmp_path_factory.mktemp("communication")
    ranks_found: list[dict[str, Any]] = ranks.found(
        Path(__file__).with_name("communication_worker.py"), folder=folder, count=4
    )
    return ranks_found


def pairs(found: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return every rank's findings of every pair."""
    return [(types, own) for rank in found for types, own in rank.items() if " forward, " in types]


def test_the_bytes_on_the_process_group_are_those_of_the_types(found: list[dict[str, Any]]) -> None:
    """Sent forward by each rank, and received backward; what the codecs counted is what was sent."""
    for types, own in pairs(found):
        by_rank = own["forward_bytes"] + own["backward_bytes"]
        assert sum(own["worked_bytes"]) == own["bytes"]["sent"], types
        assert own["worked_bytes"][0] == own["forward_bytes"], types
        assert own["bytes"]["received"] >= own["backward_bytes"], (types, by_rank)
    for types in {types for types, _ in pairs(found)}:
        total = {key: sum(rank[types]["bytes"][key] for rank in found) for key in ("sent", "received")}
        planned = sum(rank[types]["forward_bytes"] + rank[types]["backward_bytes"] for rank in found)
        assert total == {"sent": planned, "received": planned}, types


def test_switched_off_the_next_exchange_is_exact_and_on_again_it_is_narrow(found: list[dict[str, Any]]) -> None:
    """On all ranks in the same step, although one of them is late."""
    for types, own in pairs(found):
        exact = next(rank["exact"] for rank in found if rank[types] is own)
        assert own["off_bytes"] == exact, types
        assert own["again_bytes"] == own["bytes"], types


def test_logits_without_encoding_are_bit_equal_to_those_without_codecs(found: list[dict[str, Any]]) -> None:
    """Before, and after, updates."""
    for types, own in pairs(found):
        assert own["off_is_exact"], types


def test_what_a_type_loses_is_what_its_rounding_allows(found: list[dict[str, Any]]) -> None:
    """In both directions; gradients of FP16 lose as little as values, by their scale."""
    for types, own in pairs(found):
        forward, _, backward, _ = types.replace(",", "").split()
        for kind, error in zip((forward, backward), own["errors"], strict=True):
            assert error <= LIMITS[kind], types
        if forward != "FP32":
            assert own["difference"] > 0, types


def test_a_codec_that_is_broken_is_off_within_three_checks_on_all_ranks(found: list[dict[str, Any]]) -> None:
    """It decodes 20 times the values."""
    for rank in found:
        states = [each["state"] for each in rank["guard"]["records"]]
        assert states == ["Narrow", "Narrow", "Suspended", "Suspended"]
        assert rank["guard"]["records"] == found[0]["guard"]["records"]
        assert not rank["guard"]["is_on"]
