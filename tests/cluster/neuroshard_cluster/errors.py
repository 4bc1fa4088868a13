"""What can go wrong with a test cluster, named after what the caller should do.

ClusterError
├── HostError        fix the machine: a tool, a right or a kernel feature is missing
├── CommandError     read the command's own words: it ran and failed
├── UnknownError     name something that exists
└── TimedOutError    read the last observation: a state was not reached in time
"""


class ClusterError(Exception):
    """The root: everything this package raises on purpose."""


class HostError(ClusterError):
    """The machine lacks something that the cluster needs."""


class CommandError(ClusterError):
    """A program failed; the message holds its command line and the end of its output."""


class UnknownError(ClusterError):
    """A cluster, node or process of that name is not there."""


class TimedOutError(ClusterError):
    """A state was not reached in time; the message holds what was seen last."""
