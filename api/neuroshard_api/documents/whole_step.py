"""A whole training step as a plan predicts it: embedding part, dense part, and what the host does meanwhile.

A GPU runs what the host has queued. While a trainer's pipeline lets the host run ahead, both work at the same time, and
the step takes as long as the longer of the two: where that is the host, no plan changes it. On a CPU one thread does
both, and the step is their sum.
"""

from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.counts import Count, Milliseconds
from neuroshard_api.documents.document import Value


class HostCost(Value):
    """Time of the thread that trains, in Python, dispatch, autograd, and launches of kernels."""

    tables_ms: Milliseconds
    """TorchRec's part: batches, exchanges, lookups, and their backward passes, codecs included."""
    dense_ms: Milliseconds | None = None
    """Operations of the dense part, and of its optimizer. If unset: they were not counted."""
    launches: Count
    """Kernels that are launched in a step, as far as they are counted."""
    source: Annotated[str, Field(min_length=1, max_length=200)]
    """Where the times of operations come from: ``measured:<device>`` or ``assumed:<machine>``."""

    @property
    def total_ms(self) -> float:
        """All that is counted."""
        return self.tables_ms + (self.dense_ms or 0.0)


class WholeStep(Value):
    """One step of training, in milliseconds."""

    total_ms: Milliseconds
    """The longer of devices and host; on a CPU their sum. Without a counted dense part a lower limit, which has its
    matrix products where they are known."""
    embedding_ms: Milliseconds
    """What the plan decides: its predicted total."""
    dense_ms: Milliseconds | None = None
    """The dense part on the devices, its collectives and optimizer included. If unset: it was not counted."""
    matrices_ms: Milliseconds | None = None
    """Products with the weight matrices of a dense part that was not counted. If unset: none are known."""
    host: HostCost

    @property
    def device_ms(self) -> float:
        """What devices are busy, or wait for each other."""
        return self.embedding_ms + (self.dense_ms or 0.0) + (self.matrices_ms or 0.0)

    @property
    def is_host_bound(self) -> bool:
        """Whether the step is longer than what devices do, and no part of it is theirs alone."""
        return self.total_ms == self.host.total_ms > self.device_ms

    @property
    def decided_share(self) -> float:
        """Share of the step that the placement of tables decides."""
        return 0.0 if self.is_host_bound or not self.total_ms else self.embedding_ms / self.total_ms
