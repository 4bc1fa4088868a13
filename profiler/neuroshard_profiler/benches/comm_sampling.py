"""Which all-to-alls are measured: half with the job's batch and columns, half spread widely. Times nothing.

Mean columns per device are log-uniform 4..4096, the batch per device log-uniform 32..16384 (a power of two), elements
have 4 bytes in 80 % and 2 in the others. One device in a fourth of the samples is the fullest by far, the others are
drawn about evenly. Half of the samples start with a skew of up to 5 ms. Samples over max_bytes get a smaller batch.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.records import CommunicationSample
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import Link

MAX_MEAN_DIM_SUM = 4096
MAX_SKEW_MS = 5.0

_STREAM = 1  # of a seed's random numbers; compute samples are drawn from another

_JOB_SHARE = 0.5
_SKEWED_SHARE = 0.5
_UNEVEN_SHARE = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationSpace:
    """The devices, and what is drawn for them."""

    num_nodes: int
    devices_per_node: int
    intra_node: Link | None
    """None: a node has one device."""
    inter_node: Link | None
    """None: there is one node."""
    max_bytes: int = 2**25
    """Most that the fullest device sends in all."""
    job: TableSet | None = None
    """Its columns are spread over the devices in half of the samples. None: wide samples only."""
    job_batch_size_per_device: int = 8192
    """Batch of these samples."""


def communication_sample(space: CommunicationSpace, *, seed: int, index: int) -> CommunicationSample:
    """Return the all-to-all of this number; directions take turns."""
    random = np.random.default_rng([seed, _STREAM, index])
    num_devices = space.num_nodes * space.devices_per_node
    is_job = space.job is not None and random.random() < _JOB_SHARE
    if is_job and space.job is not None:
        mean = sum(table.embedding_dim for table in space.job.tables) / num_devices
        batch_size = space.job_batch_size_per_device
    else:
        mean = float(np.exp(random.uniform(np.log(4), np.log(MAX_MEAN_DIM_SUM))))
        batch_size = 2 ** int(random.integers(5, 15))
    if random.random() < _UNEVEN_SHARE:
        shares = np.ones(num_devices)
        shares[random.integers(num_devices)] = random.uniform(1, num_devices + 1)
    else:
        shares = np.exp(random.normal(0, 0.3, num_devices))
    dim_sums = np.maximum(4, 4 * np.round(mean * num_devices * shares / shares.sum() / 4)).astype(int)
    bytes_per_element = 4 if random.random() < 0.8 else 2  # noqa: PLR2004 - see above
    largest = space.max_bytes / (float(dim_sums.max()) * num_devices * bytes_per_element)
    offsets = random.uniform(0, MAX_SKEW_MS, num_devices) if random.random() < _SKEWED_SHARE else ()
    return CommunicationSample(
        direction="backward" if index % 2 else "forward",
        num_nodes=space.num_nodes,
        devices_per_node=space.devices_per_node,
        intra_node=space.intra_node,
        inter_node=space.inter_node,
        batch_size_per_device=max(1, min(batch_size, int(largest))),
        bytes_per_element=bytes_per_element,
        embedding_dim_sums=tuple(int(columns) for columns in dim_sums),
        start_offsets_ms=tuple(round(float(offset), 3) for offset in offsets),
    )
