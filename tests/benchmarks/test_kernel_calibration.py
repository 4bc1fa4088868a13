"""Which measured calls set the simulator's constants, and which judge them."""

from benchmarks.kernel_calibration import halves


def test_no_held_out_call_has_the_tables_of_another() -> None:
    """A call of the same tables in another batch says little more than the call that set the constants."""
    calibrating, held_out = halves()
    known = {sample.tables for sample, _ in calibrating}

    assert known
    assert all(held_out.values())
    for found in held_out.values():
        tables = {sample.tables for sample, _ in found}
        assert not tables & known
        known |= tables
