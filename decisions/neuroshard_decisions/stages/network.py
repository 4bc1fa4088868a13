"""The network between nodes, measured by profilers on two of them: whether they met, and what is known of the link.

For a job of several nodes the profiler's Job has two pods on two nodes. One that waits for its peer in vain ends with
the exit code of a lost peer. A Job that fails for nothing else did not get two nodes in time: then one node is
profiled, and the plan takes the usual network of the device type. A warning says so.
"""

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.job.status import HardwareStatus
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_decisions import names
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import Reason, WarningUpdate, warning_of, warnings_among
from neuroshard_decisions.context import Context
from neuroshard_decisions.hardware import wants_network
from neuroshard_decisions.observed.objects import ChildJob

_GIGABYTE, _SECOND_US = 1e9, 1e6
_USUAL = "plans take the usual network of the device type, where one is known"


def nodes_did_not_meet(context: Context, profiler: ChildJob | None) -> bool:
    """Return whether a profiler's Job on two nodes failed since they did not meet in time."""
    return profiler is not None and profiler.succeeded == 0 and _lost_peers_alone(context, profiler)


def met_before(context: Context, profiler: ChildJob) -> bool:
    """Return whether a restart of node 0, after its peer had succeeded, failed a Job on two nodes."""
    return profiler.succeeded > 0 and _lost_peers_alone(context, profiler)


def _lost_peers_alone(context: Context, profiler: ChildJob) -> bool:
    if profiler.parallelism == 1 or profiler.outcome is None or profiler.outcome.succeeded:
        return False
    ends = [pod.termination for pod in context.pods_of(profiler) if not pod.disruption]
    codes = {end.exit_code for end in ends if end is not None}
    return ExitCode.PEER_LOST in codes and codes <= {ExitCode.PEER_LOST, ExitCode.STOPPED}


_NOT_MEASURED = (Reason.ONE_NODE, Reason.NODES_DID_NOT_MEET)


def network_measured(hardware: HardwareStatus, measured: Hardware) -> str:
    """Return the link that a profile of two nodes measured, as the end of a message; empty for one of one node.

    Raises:
        DocumentError: the profile is of two nodes and lacks the link between them.
    """
    if not hardware.network_nodes:
        return ""
    link = measured.inter_node
    if link is None:
        raise DocumentError("hardware", ["inter_node: was not measured, although two nodes were profiled"])
    return (
        f"; the link between nodes was measured on {hardware.network_nodes} nodes: "
        f"{link.bandwidth_bytes_per_second / _GIGABYTE:.3g} GB/s per device, "
        f"{link.latency_seconds * _SECOND_US:.3g} microseconds"
    )


def network_not_measured(
    context: Context, hardware: HardwareStatus
) -> tuple[tuple[WarningUpdate, ...], tuple[Event, ...]]:
    """Return the cause that a multi-node job's network is not measured; none where it is, or where it has none."""
    if hardware.network_nodes or not wants_network(context.spec):
        return warnings_among(_NOT_MEASURED, {}), ()
    recorded = context.status.hardware
    is_same = recorded is not None and recorded.fingerprint == hardware.fingerprint
    known = is_same and warning_of(context.status.warnings, Reason.NODES_DID_NOT_MEET) is not None
    if known or any(nodes_did_not_meet(context, job) for job in context.owned_jobs(names.PROFILER)):
        reason = Reason.NODES_DID_NOT_MEET
        what = "profilers on two nodes did not meet in time; hint: see that two nodes of the kind are free, and resume"
    else:
        reason = Reason.ONE_NODE
        what = "no two nodes of the kind that the job gets take its pods; hint: add or open one, and resume the job"
    message = f"the network between nodes was not measured, and {_USUAL}: {what}"
    is_news = warning_of(context.status.warnings, reason) is None
    events = (Event(reason=EventReason.NETWORK_NOT_MEASURED, message=message),) if is_news else ()
    return warnings_among(_NOT_MEASURED, {reason: message}), events
