"""The operators of a unit: what can be gathered alone when the unit is split."""

from collections.abc import Iterator

from torch import nn

LEAST_SHARE = 0.01
"""Share of a unit's parameters below which a module is gathered with the unit: alone it would save no memory, for a
collective whose latency no work hides."""


def operators_of(unit: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Return the highest modules below a unit that own parameters themselves, by their path, in the model's order.

    An operator is gathered with all modules below it. What the unit's module owns itself is in none, and neither are
    modules of less than LEAST_SHARE of its parameters, such as norms. Empty where a parameter is in two of them, or is
    the module's own as well: it would have to be whole with both.
    """
    least = LEAST_SHARE * sum(weight.numel() for weight in unit.parameters())
    found = tuple(
        (path, module)
        for path, module in _highest("", unit)
        if sum(weight.numel() for weight in module.parameters()) >= least
    )
    owned = [weight for _, operator in found for weight in operator.parameters()]
    owned += unit.parameters(recurse=False)
    return found if len({id(weight) for weight in owned}) == len(owned) else ()


def _highest(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if any(True for _ in child.parameters(recurse=False)):
            yield where, child
        else:
            yield from _highest(where, child)
