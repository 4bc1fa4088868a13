"""The units of a dense part: the smallest modules that together account for it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from neuroshard_api.documents.dense_profile import DenseOperator, DenseUnit
from neuroshard_api.documents.tables import DataType
from neuroshard_api.process.errors import InputError
from torch import nn

from neuroshard_trainer.dense.operators import operators_of
from neuroshard_trainer.dense.trackers import ModuleCount

_DATA_TYPES = {"float32": DataType.FP32, "float16": DataType.FP16, "bfloat16": DataType.BF16}
_Modules = Sequence[tuple[str, nn.Module]]
_LEAST_SPLIT = 2
"""Operators of a unit that may be split: one alone is gathered as the unit is."""


def unit_modules(model: nn.Module, counts: Mapping[str, ModuleCount], *, but: Sequence[nn.Module]) -> _Modules:
    """Return the units' paths and modules in the order of the model's.

    The model is replaced by its children, and so is every module whose children hold all of its parameters and work,
    and without parameters all of its kept memory; of a chain of only children the highest is the unit. What a replaced
    module keeps itself, such as a copy of its inputs side by side, is in no unit. A module without parameters, work,
    and memory, such as an identity, is none.

    Args:
        model: was counted.
        counts: its modules' by path.
        but: modules that are not units.
    """
    return [
        (path, module)
        for path, module in _leaves("", model, counts)
        if module not in but
        and (_num_parameters(module) or counts[path].forward_flops or counts[path].activation_bytes)
    ]


def units_of(
    modules: _Modules, counts: Mapping[str, ModuleCount], backward_peaks: Mapping[str, int]
) -> tuple[DenseUnit, ...]:
    """Return the units as they were counted; equal neighbors are one unit that repeats.

    Args:
        modules: of the units, by path.
        counts: of them and of those below them.
        backward_peaks: their highest memory above where their backward passes begin, where they are sharded.

    Raises:
        InputError: parameters are of a type that documents do not know.
    """
    unkept = _unkept_bytes([path for path, _ in modules], counts)
    units = [_unit(path, module, counts, backward_peaks, unkept[path]) for path, module in modules]
    groups = [list(group) for _, group in groupby(units, key=lambda unit: unit.model_copy(update={"module": ""}))]
    return tuple(_group(units) for units in groups)


def _unkept_bytes(units: Sequence[str], counts: Mapping[str, ModuleCount]) -> dict[str, int]:
    """Return the bytes of inputs that nothing keeps and no unit has made, by path; what units share is the first's."""
    counted = {storage for path in units for storage in counts[path].made_outputs}
    found = {}
    for path in units:
        further = [storage for storage in counts[path].unkept_inputs if storage not in counted]
        found[path] = sum(storage.num_bytes for storage in further)
        counted.update(further)
    return found


def _group(units: Sequence[DenseUnit]) -> DenseUnit:
    """Return equal units as one that repeats."""
    further = tuple(unit.module for unit in units[1:])
    return units[0].model_copy(update={"repeats": len(units), "further_modules": further or None})


def _leaves(path: str, module: nn.Module, counts: Mapping[str, ModuleCount]) -> Iterator[tuple[str, nn.Module]]:
    children = list(_called(path, module, counts))
    if path and not _is_sum(path, module, children, counts):
        yield path, module
        return
    parts = [leaf for where, child in children for leaf in _leaves(where, child, counts)]
    yield from [(path, module)] if path and len(parts) == 1 else parts


def _called(path: str, module: nn.Module, counts: Mapping[str, ModuleCount]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the highest modules below one that were called; lists of modules are not."""
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if where in counts:
            yield where, child
        else:
            yield from _called(where, child, counts)


def _is_sum(path: str, module: nn.Module, children: _Modules, counts: Mapping[str, ModuleCount]) -> bool:
    parts = [counts[where] for where, _ in children]
    whole, num_parameters = counts[path], _num_parameters(module)
    keeps_all = sum(part.activation_bytes for part in parts) == whole.activation_bytes
    return (
        bool(children)
        and sum(_num_parameters(child) for _, child in children) == num_parameters
        and sum(part.forward_flops for part in parts) == whole.forward_flops
        and (keeps_all or num_parameters > 0)
    )


def _unit(
    path: str, module: nn.Module, counts: Mapping[str, ModuleCount], backward_peaks: Mapping[str, int], unkept: int
) -> DenseUnit:
    count, peak = counts[path], backward_peaks.get(path)
    return DenseUnit(
        module=path,
        num_parameters=_num_parameters(module),
        largest_tensor_parameters=max((weight.numel() for weight in module.parameters()), default=0),
        data_type=_data_type(path, module),
        forward_flops=count.forward_flops,
        backward_flops=count.backward_flops,
        activation_bytes=count.activation_bytes,
        input_bytes=count.input_bytes,
        output_bytes=count.output_bytes,
        unkept_input_bytes=unkept,
        transient_bytes=count.transient_bytes,
        sharded_transient_bytes=None if peak is None else max(count.forward_transient_bytes, peak),
        operators=_operators(path, module, counts, backward_peaks),
    )


def _operators(
    path: str, unit: nn.Module, counts: Mapping[str, ModuleCount], backward_peaks: Mapping[str, int]
) -> tuple[DenseOperator, ...] | None:
    """Return a unit's operators in the order of the forward pass. None: it cannot be split.

    An operator is gathered when it is called: so each must be called once.
    """
    operators = {f"{path}.{name}": (name, operator) for name, operator in operators_of(unit)}
    whole = counts[path]
    called = [where for where in counts if where in operators]  # as they were called: none is below another one
    if len(operators) < _LEAST_SPLIT or len(called) < len(operators) or whole.levels is None:
        return None
    # As the timeline counts the unit: activations and the gradient of the output, where its backward pass begins.
    backward_base = whole.levels.before_backward - whole.activation_bytes - whole.output_bytes
    found = []
    for where in called:
        (name, operator), count = operators[where], counts[where]
        levels = count.levels
        if levels is None:
            return None
        found.append(
            DenseOperator(
                module=name,
                num_parameters=_num_parameters(operator),
                largest_tensor_parameters=max(weight.numel() for weight in operator.parameters()),
                forward_flops=count.forward_flops,
                backward_flops=count.backward_flops,
                forward_bytes=max(levels.highest_forward - whole.levels.before_forward, 0),
                backward_bytes=max(levels.before_backward - backward_base, 0),
                transient_bytes=max(levels.highest_backward - levels.before_backward, 0),
                sharded_transient_bytes=backward_peaks.get(where),
                left_bytes=max(levels.after_backward - backward_base, 0),
            )
        )
    return tuple(found)


def _num_parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _data_type(path: str, module: nn.Module) -> DataType:
    found = {str(weight.dtype).removeprefix("torch.") for weight in module.parameters()} or {"float32"}
    if len(found) > 1 or not found <= _DATA_TYPES.keys():
        raise InputError(
            f"module {path!r} has parameters of type {', '.join(sorted(found))}; "
            f"a unit has one type out of {', '.join(_DATA_TYPES)}"
        )
    return _DATA_TYPES[found.pop()]
