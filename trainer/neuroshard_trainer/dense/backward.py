"""The memory of backward passes as sharded modules have it, under torch's trackers.

A replica adds each gradient to what lives from step to step, and drops it at once. A sharded unit has no gradients when
its backward pass begins, keeps those of all its tensors until it reduces them, and hands on the gradients of all its
inputs together: ``fully_shard`` joins them in one autograd function, to know when the unit is done. Both are counted
in a step of replicas, whose units' inputs are joined likewise.
"""

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from neuroshard_trainer.dense.trackers import TOTAL, by_purpose, memory_tracker

_IN_PLACE = "modified inplace"
"""Of torch's message about an operation that would change a joined input."""


def backward_peaks(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], torch.Tensor],
    *,
    inputs: Sequence[torch.Tensor],
    units: Collection[nn.Module],
) -> dict[str, int]:
    """Take a step without the optimizer's, and return the highest memory of each module's backward pass.

    A backward pass ends where that of a module begins that is neither above nor below it: an input that modules share
    would end it with the last of them. Modules that begin together do not end each other: one that returns its input
    as it is, such as an identity, begins with the module that made it.

    Args:
        model: has gradients and optimizer state.
        optimizer: of its parameters.
        loss: runs the forward pass.
        inputs: of the model.
        units: modules that are sharded.

    Returns:
        Bytes above the beginning of the backward pass, by the module's path; none of a module without one. Nothing at
        all where the inputs cannot be joined, since a unit changes its own in place.
    """
    tracker = memory_tracker()
    tracker.track_external(model, optimizer, *inputs)
    peaks = _Peaks(model, lambda: by_purpose(tracker.get_tracker_snapshot("current"))[TOTAL])
    optimizer.zero_grad(set_to_none=False)
    try:
        with _joined_inputs(units), _set_aside(), tracker, peaks.watched():
            value = loss()
            with _uncollected():
                torch.autograd.backward(value)
    except RuntimeError as error:
        if _IN_PLACE not in str(error):
            raise
        return {}
    return peaks.above


@contextmanager
def _set_aside() -> Iterator[None]:
    """Keep objects that are there already out of collections in the block: those of all modules take long."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect what the forward pass left in cycles, and nothing in the block: it would be freed at a random moment."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Peaks:
    """The highest moments of modules whose backward passes are watched.

    Args:
        model: has the modules.
        allocated: returns the bytes that are allocated.
    """

    def __init__(self, model: nn.Module, allocated: Callable[[], int]) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        self._owners = {weight: name.rpartition(".")[0] for name, weight in model.named_parameters()}
        self._allocated = allocated
        self._first: dict[str, int] = {}
        """Bytes where the backward pass begins, by path."""
        self._gradients: dict[str, int] = {}
        """Bytes that are computed so far, of modules whose backward pass has begun and not ended."""
        self._just_begun: set[str] = set()
        """Modules whose backward pass has begun since the last operation."""
        self.above: dict[str, int] = {}
        """Of modules with an operation in their backward pass."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch what runs inside."""
        from torch.distributed._tools.mod_tracker import ModTracker  # noqa: PLC0415 - the memory tracker has it as well

        modules = ModTracker()  # type: ignore[no-untyped-call]
        modules.register_user_hooks(pre_bw_hook=self._begin, post_bw_hook=self._end)
        hooks = [
            weight.register_post_accumulate_grad_hook(self._keep)  # type: ignore[no-untyped-call]
            for weight in self._owners
        ]
        try:
            with modules, _AfterEach(self._see):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self, module: nn.Module, _: object) -> None:
        path = self._paths.get(module)
        if path is None:  # such as a loss: the hooks are those of all modules
            return
        for other in self._gradients.keys() - self._just_begun:
            if not (_is_below(path, other) or _is_below(other, path)):
                del self._gradients[other]
        self._first[path], self._gradients[path] = self._allocated(), 0
        self._just_begun.add(path)

    def _end(self, module: nn.Module, _: object) -> None:
        path = self._paths.get(module)
        if path is not None:
            self._gradients.pop(path, None)

    def _keep(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None, "it was accumulated"
        for path in self._gradients:
            if _is_below(self._owners[weight], path):  # type: ignore[index] # the hook gets the parameter
                self._gradients[path] += weight.grad.nbytes

    def _see(self) -> None:
        self._just_begun.clear()
        if not self._gradients:
            return
        allocated = self._allocated()
        for path, gradients in self._gradients.items():
            self.above[path] = max(self.above.get(path, 0), allocated + gradients - self._first[path])


class _AfterEach(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's own
    """Calls a function after each operation."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._then = then

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        _types: object,
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - of any operation
        """Run the operation."""
        result = operation(*arguments, **(named or {}))
        self._then()
        return result


class _Join(torch.autograd.Function):
    """Hands on gradients when all of them are there."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401, ARG004
        """Return the tensors."""
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ANN401, ARG004
        """Return the gradients."""
        return gradients


@contextmanager
def _joined_inputs(units: Collection[nn.Module]) -> Iterator[None]:
    """Join the inputs of each unit that need gradients."""

    def join(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
        leaves, spec = tree_flatten((arguments, named))
        places = [place for place, each in enumerate(leaves) if isinstance(each, torch.Tensor) and each.requires_grad]
        if places:
            for place, joined in zip(places, _Join.apply(*[leaves[place] for place in places]), strict=True):
                leaves[place] = joined
        found: tuple[Any, Any] = tree_unflatten(leaves, spec)
        return found

    hooks = [unit.register_forward_pre_hook(join, with_kwargs=True) for unit in units]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_below(path: str, other: str) -> bool:
    """Compare paths of modules: true where the first is the second, or below it."""
    return not other or path == other or path.startswith(f"{other}.")
