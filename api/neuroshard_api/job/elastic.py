"""Jobs of several sizes: ``spec.experimental.elastic``, and what the status says of the size.

``trainer.numNodes`` stays a number, and is the maximum. A structural schema has no union of a number and an object, of
an integer and a text alone, and a second maximum next to numNodes could contradict it. So a job becomes elastic by one
field, its minimum, and every tool that reads numNodes finds what the job asks for.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from neuroshard_api.job.model import MAX_BATCH_SIZE
from neuroshard_api.job.resource import Part, Rule

_Small = Annotated[int, Field(ge=0, lt=2**31)]
_Text = Annotated[str, Field(max_length=1024)]


class ElasticBatch(StrEnum):
    """Which batch stays the same at every number of nodes."""

    GLOBAL = "Global"
    PER_DEVICE = "PerDevice"


class LearningRateScale(StrEnum):
    """How learning rates follow the global batch."""

    NONE = "None"
    LINEAR = "Linear"


class SizeReason(StrEnum):
    """Why an elastic job has its number of nodes."""

    NODES_AVAILABLE = "NodesAvailable"
    """As many nodes take workers at the first start, or as before."""
    NODES_LOST = "NodesLost"
    """Fewer nodes take workers than before, or some workers found none."""
    NODES_JOINED = "NodesJoined"
    """More nodes take workers than before."""
    NO_PLAN = "NoPlan"
    """Planning failed for fewer nodes."""
    QUOTA_LACKING = "QuotaLacking"
    """Kueue admits fewer workers than were asked for."""
    QUOTA_RETURNED = "QuotaReturned"
    """The queue has quota for more workers than before."""


class Elastic(Part):
    """The numbers of nodes that a job trains on: from minNodes to trainer.numNodes."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.scaleLearningRate == 'None' || self.batch == 'PerDevice'",
            message="scaleLearningRate is for batch PerDevice: with batch Global a step has as many samples on any "
            "number of nodes",
            holds=lambda elastic: (
                elastic.scale_learning_rate is LearningRateScale.NONE or elastic.batch is ElasticBatch.PER_DEVICE
            ),
        ),
    )

    min_nodes: Annotated[int, Field(ge=1, le=1024)]
    """Fewest nodes. With fewer the job waits."""
    batch: ElasticBatch = ElasticBatch.GLOBAL
    """What stays when the number of nodes changes. Global: the samples of a step on all devices, which are
    model.batchSizePerDevice on trainer.numNodes nodes; numbers of nodes that do not divide them are left out.
    PerDevice: the samples of each device, so that steps become smaller on fewer nodes."""
    scale_learning_rate: LearningRateScale = LearningRateScale.NONE
    """Learning rates on fewer nodes than trainer.numNodes, with batch PerDevice. None: as they are given. Linear: by
    the share of nodes."""


def kept_batch(samples_per_device: int, most_nodes: int, num_nodes: int) -> int | None:
    """Return the samples of each device on some nodes that make the step of all nodes.

    None: it would not be a whole number, or too large.

    Args:
        samples_per_device: on all nodes.
        most_nodes: number of all nodes.
        num_nodes: of these.
    """
    batch, rest = divmod(samples_per_device * most_nodes, num_nodes)
    return None if rest or batch > MAX_BATCH_SIZE else batch


class GrowthStatus(Part):
    """The last look for more nodes while the job trains."""

    num_nodes: _Small
    """Nodes that take workers, as many as are within the job's bounds."""
    verdict: _Text | None = None
    """What was decided, in one CamelCase word. If unset: a plan for that many nodes is being made."""
    message: _Text
    """Why, in a sentence with its numbers."""
    time: datetime
    """When it was decided."""


class ElasticStatus(Part):
    """The number of nodes of an elastic job, and why it is that."""

    num_nodes: _Small
    """Nodes that the job trains on, or is started on."""
    reason: _Text
    """Why, in one CamelCase word: NodesAvailable, NodesLost, NodesJoined, NoPlan, QuotaLacking, or QuotaReturned."""
    message: _Text
    """Why, in a sentence."""
    start_time: datetime
    """When the number was decided."""
    attempt: _Small
    """Restarts before the start that it was decided for: another start decides again."""
    resizes: _Small | None = None
    """Changes of the number. If unset: none."""
    missed: _Small | None = None
    """Starts of which some workers found no node. If unset: none. Each doubles the time before the job looks for more
    nodes."""
    growth: GrowthStatus | None = None
    """The last look for more nodes. If unset: there was none since the number was decided."""
    least_nodes: _Small | None = None
    """Fewest nodes with a plan, where planning for fewer failed. If unset: it did not."""
