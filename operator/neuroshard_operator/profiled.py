"""What planning needs of profiling, as values."""

from dataclasses import dataclass

from neuroshard_api.topology import Topology

from neuroshard_operator.children.stage_jobs import Bundle


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """Cost models, and the devices and links that they are for."""

    bundle: Bundle
    topology: Topology
