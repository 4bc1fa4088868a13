"""The operators of a unit: what can be gathered alone when the unit is split."""

from collections.abc import Iterator

from torch import nn

LEAST_SHARE = 0.01
"""Share of a unit's parameters below which a module is gathered with the unit: alone it would save no memory, for a
collective whose latency no work hides."""


def operators_of(unit: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Return the highest modules below a unit that own parameters themselves, by their path, in the model's order.

    An operator is gathered with all modules below it. What the unit's module owns itself is in none, and neither are
    modules of less than LEAST_SHARE of its parameters, such as norms. Empty where a parameter is in one of them and
    elsewhere in the unit as well: it would have to be whole with both.
    """
    least = LEAST_SHARE * sum(weight.numel() for weight in unit.parameters())
    found = tuple(
        (path, module)
        for path, module in _highest("", unit)
        if sum(weight.numel() for weight in module.parameters()) >= least
    )
    owners: dict[int, set[str | None]] = {}
    for name, weight in unit.named_parameters(remove_duplicate=False):
        owner = next((path for path, _ in found if name.startswith(f"{path}.")), None)
        owners.setdefault(id(weight), set()).add(owner)
    return found if all(len(each) == 1 for each in owners.values()) else ()


def _highest(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if any(True for _ in child.parameters(recurse=False)):
            yield where, child
        else:
            yield from _highest(where, child)
