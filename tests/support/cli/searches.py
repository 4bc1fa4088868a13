"""Searches of tests that do not judge how good a plan is: few evaluations, and a plan within a moment."""

QUICK_WORK = 3_000


def quick(devices: int | str) -> tuple[str, ...]:
    """Return the options of a quick search for H100s; give further ones after them."""
    return (
        "--devices",
        str(devices),
        "--device-type",
        "h100-80gb",
        "--set",
        f"spec.experimental.planner.workBudget={QUICK_WORK}",
    )
