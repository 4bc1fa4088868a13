"""The operators of a unit: what can be gathered alone when the unit is split."""

from collections.abc import Iterator

from torch import nn


def operators_of(unit: nn.Module) -> tuple[tuple[str, nn.Module], ...]:
    """Return the highest modules below a unit that own parameters themselves, by their path, in the model's order.

    An operator is gathered with all modules below it. What the unit's module owns itself is in none. Empty where a
    parameter is in two of them, or is the module's own as well: it would have to be whole with both.
    """
    found = tuple(_highest("", unit))
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
