"""The table of the simulator's constants."""

from pathlib import Path

import pytest
from neuroshard_costs.simulator.constants import Constant, ConstantTrust, constants, markdown_table

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "device-simulator-formulas.md"


def test_the_appendix_of_the_simulator_shows_the_table() -> None:
    """`python -m neuroshard_costs.simulator.constants` prints what the page must hold."""
    assert f"\n{markdown_table()}\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list(constants()))
def test_every_constant_says_where_it_comes_from(name: str) -> None:
    """With its unit and how far it can be trusted."""
    constant = constants()[name]

    assert constant > 0
    assert constant.unit
    assert constant.source
    assert constant.status in ConstantTrust


def test_no_number_of_the_simulator_is_outside_the_table() -> None:
    """What its modules compute with is in the table or in a data sheet; counts, positions and units apart."""
    folder = Path(__file__).parents[3] / "costs" / "neuroshard_costs" / "simulator"
    loose = [
        f"{path.name}: {line}"
        for path in folder.glob("*.py")
        if path.name != "constants.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.partition(" = ")[0].isupper() and line.partition(" = ")[2].replace(".", "").replace("e-", "").isdigit()
    ]

    assert sorted(loose) == [
        "compute.py: INDEX_CHECK = 3",
        "compute.py: NUM_DEMANDS = 9",
        "device.py: _MS_PER_SECOND = 1000.0",
    ]


def test_a_constant_is_a_number() -> None:
    """It computes like the float that it is."""
    assert Constant(0.5, "of the peak", ConstantTrust.ASSUMED, "a test") * 4 == 2.0
