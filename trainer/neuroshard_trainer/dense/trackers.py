"""One step under torch's trackers: bytes by purpose at the peak, and per module its work and memory.

The trackers are in torch's ``_tools``, whose names may change: every use of them is in this module, and what they
counted is compared with the sizes of parameters, gradients and optimizer state.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.process.errors import InputError
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

if TYPE_CHECKING:
    from torch.distributed._tools.mem_tracker import MemTracker

TOTAL = "Total"
"""Of all purposes."""
_NOTHING_COMPUTED = (
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
    torch.ops.aten.detach,
    torch.ops.aten.lift_fresh,
    torch.ops.aten._local_scalar_dense,  # noqa: SLF001 - an operation, of an optimizer's number of steps on the host
)
_BATCHED = (torch.ops.aten.bmm, torch.ops.aten.baddbmm)
"""Products of a matrix for each sample."""
_BACKWARD = 2  # products of a backward pass for one of the forward pass, at the most: by input and by weight
_REMEDY = (
    "use the version of torch in constraints.txt, or give the dense part's memory yourself "
    "(spec.experimental.planner.denseMemoryPerDevice)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Levels:
    """All memory that is allocated at moments of a module's passes, in bytes."""

    before_forward: int
    highest_forward: int
    before_backward: int
    highest_backward: int
    after_backward: int


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Storage:
    """The memory of a tensor and its views; equal to itself alone."""

    num_bytes: int
    held: weakref.ref[torch.UntypedStorage]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleCount:
    """Work and memory of one module in one step, its children included."""

    forward_flops: int
    backward_flops: int
    activation_bytes: int
    """Memory that the forward pass leaves allocated, its output included."""
    input_bytes: int
    """Tensors that the module is called with."""
    output_bytes: int
    unkept_inputs: Sequence[Storage]
    """The part of the input that is gone before the backward pass: a module that is computed again keeps it."""
    made_outputs: Sequence[Storage]
    """The part of the output that is not the input's: the activations count it, gone or not."""
    transient_bytes: int
    """Highest memory of the forward pass above what it leaves, or of the backward pass above its beginning."""
    forward_transient_bytes: int
    """The same of the forward pass alone."""
    levels: Levels | None
    """None: the module is not called once in forward and once in backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCount:
    """The memory of a step where it is highest, by purpose, and the modules by path."""

    weights_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    working_bytes: int
    """All else but the inputs."""
    passes_working_bytes: int
    """The same in forward and backward alone."""
    forward_working_bytes: int
    """The same in forward alone."""
    kept_bytes: int
    """What forward leaves for backward."""
    optimizer_working_bytes: int
    """Temporary tensors of the optimizer's step, at their highest."""
    modules: Mapping[str, ModuleCount]
    passes: DensePasses


def counted_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
    *,
    inputs: Sequence[torch.Tensor],
) -> StepCount:
    """Take two steps and count the second, which begins with all gradients and optimizer state.

    Args:
        model: called once by ``loss``; its tensors are fake, or small.
        optimizer: of the model's parameters.
        loss: runs the forward pass.
        inputs: of the model, which are not counted.

    Raises:
        InputError: the trackers of this version of torch do not count as expected.
    """
    flops = FlopCounterMode(display=False)
    with flops:
        forward: dict[str, int] = {}

        def backward(value: torch.Tensor) -> None:
            forward.update(_flops_by_module(flops))
            torch.autograd.backward(value)

        forward_pass, backward_pass = counted_passes(loss, backward)
    optimizer.step()
    tracker = memory_tracker()
    tracker.track_external(model, optimizer, *inputs)
    with _inputs_and_outputs(model) as called, tracker:
        optimizer.zero_grad(set_to_none=False)  # the buckets of DistributedDataParallel stay allocated
        value = loss()
        looked_up = {module: each.looked_up() for module, each in called.items()}
        forward_peak, kept = (by_purpose(tracker.get_tracker_snapshot(moment)) for moment in ("peak", "current"))
        torch.autograd.backward(value)
        del value
        passes = by_purpose(tracker.get_tracker_snapshot("peak"))
        optimizer.step()
    updates = memory_tracker()
    updates.track_external(model, optimizer)
    before = by_purpose(updates.get_tracker_snapshot("current"))
    with updates, _Operations() as optimizer_operations:
        optimizer.step()
    updated = by_purpose(updates.get_tracker_snapshot("peak"))
    peak, after = (by_purpose(tracker.get_tracker_snapshot(moment)) for moment in ("peak", "current"))
    weights, gradients = peak["PARAM"] + peak["BUFFER"], peak["GRAD"]
    state = by_purpose(tracker.get_tracker_snapshot("current"), with_host=True)["OPT"]
    _check(model, optimizer, {"weights": weights, "gradients": gradients, "optimizer state": state})

    def working(moment: Mapping[str, int]) -> int:
        return moment[TOTAL] - weights - gradients - after["OPT"] - moment["OTH"]

    return StepCount(
        weights_bytes=weights,
        gradient_bytes=gradients,
        optimizer_state_bytes=state,
        working_bytes=working(peak),
        passes_working_bytes=working(passes),
        forward_working_bytes=working(forward_peak),
        kept_bytes=working(kept),
        optimizer_working_bytes=max(updated[TOTAL] - before[TOTAL], 0),
        modules=_modules(tracker, forward, _flops_by_module(flops), looked_up),
        passes=DensePasses(
            forward=forward_pass,
            backward=backward_pass,
            optimizer=optimizer_operations.counted,
            num_tensors=sum(1 for _ in model.parameters()),
        ),
    )


def counted_passes(
    loss: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], object]
) -> tuple[DensePass, DensePass]:
    """Run a forward and a backward pass, and return the operations of each."""
    with _Operations() as forward_operations:
        value = loss()
    with _Operations() as backward_operations:
        backward(value)
    return forward_operations.counted, backward_operations.counted


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch, untyped
    """Counts what is computed: operations that return a view, or nothing but new memory, launch no kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations = self._products = self._moved_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - torch's signature
        """Call an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        if func.namespace != "aten" or func.is_view or func.overloadpacket in _NOTHING_COMPUTED:
            return result
        self._operations += 1
        is_product = func.overloadpacket in flop_registry
        self._products += is_product
        if not is_product or func.overloadpacket in _BATCHED:
            self._moved_bytes += sum(each.nbytes for each in (*_tensors((args, kwargs)), *_tensors(result)))
        return result

    @property
    def counted(self) -> DensePass:
        """The operations until now."""
        return DensePass(operations=self._operations, products=self._products, moved_bytes=self._moved_bytes)


def memory_tracker() -> "MemTracker":
    """Return a tracker of all memory. Raises InputError where this release of torch has none."""
    try:
        from torch.distributed._tools.mem_tracker import MemTracker  # noqa: PLC0415 - other releases of torch may lack it
    except ImportError as error:
        raise InputError(
            f"torch {torch.__version__} has no memory tracker to count with ({error}); hint: {_REMEDY}"
        ) from error
    return MemTracker()


def by_purpose(snapshot: Mapping[torch.device, Mapping[Any, int]], *, with_host: bool = False) -> dict[str, int]:
    """Return the bytes of all devices by the tracker's kind of tensor, and their total.

    Args:
        snapshot: of a tracker.
        with_host: whether tensors on the CPU count next to those on the meta device: an optimizer's numbers of steps.
    """
    sums: dict[str, int] = {}
    for device, counts in snapshot.items():
        if device.type == "cpu" and len(snapshot) > 1 and not with_host:
            continue
        for kind, count in counts.items():
            name = getattr(kind, "name", kind)
            sums[name] = sums.get(name, 0) + count
    return sums


def _check(model: nn.Module, optimizer: torch.optim.Optimizer, counted: Mapping[str, int]) -> None:
    """Raise InputError unless the trackers found exactly the tensors that outlive a step."""
    parameters = list(model.parameters())
    states = [each for state in optimizer.state.values() for each in state.values()]
    expected = {
        "weights": _bytes([*parameters, *model.buffers()]),
        "gradients": _bytes(each.grad for each in parameters if each.grad is not None),
        "optimizer state": _bytes(each for each in states if isinstance(each, torch.Tensor)),
    }
    for purpose, count in expected.items():
        if counted[purpose] != count:
            raise InputError(
                f"torch {torch.__version__}: its memory tracker counts {counted[purpose]:,} bytes of {purpose} where "
                f"there are {count:,}; hint: {_REMEDY}"
            )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(each.num_bytes for each in _Storages().of(list(tensors)))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Called:
    """The tensors of one call of a module."""

    input_bytes: int
    output_bytes: int
    arguments: Sequence[Storage]
    made: Sequence[Storage]
    """Memory of the results that is not of the arguments, of earlier calls as well."""
    unkept: Sequence[Storage] = ()
    """Memory of the arguments that is gone, where this was looked up."""

    def looked_up(self) -> "_Called":
        """Return the call with what is gone by now."""
        return replace(self, unkept=[each for each in self.arguments if each.held() is None])


class _Storages:
    """Finds the memory of tensors, and the same for the same."""

    def __init__(self) -> None:
        self._known: dict[int, Storage] = {}
        """By the address of the storage, which another one may have once it is gone."""

    def of(self, values: object) -> list[Storage]:
        """Return the memory of all tensors in arguments or results, each once."""
        return list(dict.fromkeys(self._find(each.untyped_storage()) for each in _tensors(values)))

    def _find(self, storage: torch.UntypedStorage) -> Storage:
        known = self._known.get(id(storage))
        if known is None or known.held() is not storage:
            known = self._known[id(storage)] = Storage(num_bytes=storage.nbytes(), held=weakref.ref(storage))
        return known


@contextmanager
def _inputs_and_outputs(model: nn.Module) -> Iterator[dict[nn.Module, _Called]]:
    """Collect every called module's arguments and results."""
    found: dict[nn.Module, _Called] = {}
    storages = _Storages()

    def note(module: nn.Module, arguments: object, result: object) -> None:
        taken, earlier = storages.of(arguments), found.get(module)
        made = [each for each in storages.of(result) if each not in taken]
        found[module] = _Called(
            input_bytes=_tensor_bytes(arguments),
            output_bytes=_tensor_bytes(result),
            arguments=taken,
            made=[*(earlier.made if earlier else ()), *made],
        )

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(values: object) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _tensor_bytes(values: object) -> int:
    return sum(each.nbytes for each in _tensors(values))


def _flops_by_module(counter: FlopCounterMode) -> dict[str, int]:
    return {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}


def _modules(
    tracker: "MemTracker",
    forward: Mapping[str, int],
    both: Mapping[str, int],
    called: Mapping[nn.Module, _Called],
) -> dict[str, ModuleCount]:
    """Return the counts by path; the root's path is empty."""
    found = {}
    for module, call in called.items():
        stats = tracker.memory_tracking[module]
        states = {
            state.name: [by_purpose(snapshot)[TOTAL] for snapshot in snapshots]
            for state, snapshots in stats.snapshots.items()
        }
        before, left = states["PRE_FW"][0], states["POST_FW"][-1]
        forward_above = above = max(states["PEAK_FW"], default=left) - left
        if "PRE_BW" in states:
            above = max(above, max(states["PEAK_BW"]) - states["PRE_BW"][0])
        name = stats.mod_fqn
        found[name.partition(".")[2]] = ModuleCount(
            forward_flops=forward.get(name, 0),
            # A module whose input others use too ends its backward pass with theirs, whose work is then counted in it.
            backward_flops=min(both.get(name, 0) - forward.get(name, 0), _BACKWARD * forward.get(name, 0)),
            activation_bytes=max(left - before, 0),
            input_bytes=call.input_bytes,
            output_bytes=call.output_bytes,
            unkept_inputs=call.unkept,
            made_outputs=call.made,
            transient_bytes=max(above, 0),
            forward_transient_bytes=max(forward_above, 0),
            levels=_levels(states),
        )
    return found


def _levels(states: Mapping[str, Sequence[int]]) -> Levels | None:
    moments = ("PRE_FW", "PEAK_FW", "PRE_BW", "PEAK_BW", "POST_BW")
    if any(len(states.get(moment, ())) != 1 for moment in moments):
        return None
    before_forward, highest_forward, before_backward, highest_backward, after_backward = (
        states[moment][0] for moment in moments
    )
    return Levels(
        before_forward=before_forward,
        highest_forward=highest_forward,
        before_backward=before_backward,
        highest_backward=highest_backward,
        after_backward=after_backward,
    )
