"""The network between nodes, measured by profilers on two of them: whether they met, and what is known of the link.

For a job of several nodes the profiler's Job has two pods on two nodes. One that waits for its peer in vain ends with
the exit code of a lost peer. A Job that fails for nothing else did not get two nodes in time: then one node is
profiled, and the plan takes the usual network of the device type. The condition NetworkMeasured says so.
"""

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.job.status import HardwareStatus
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_operator import names
from neuroshard_operator.actions import Event, EventReason
from neuroshard_operator.conditions import ConditionType, ConditionUpdate, Reason
from neuroshard_operator.context import Context
from neuroshard_operator.hardware import wants_network
from neuroshard_operator.observed.objects import ChildJob
from neuroshard_operator.stages.result import condition

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


Found = tuple[tuple[ConditionUpdate, ...], tuple[Event, ...]]


def network_measured(context: Context, hardware: HardwareStatus, measured: Hardware) -> Found:
    """Return the condition for the network of a profile.

    Raises:
        DocumentError: the profile is of two nodes and lacks the link between them.
    """
    if not hardware.network_nodes:
        return network_not_measured(context, hardware)
    link = measured.inter_node
    if link is None:
        raise DocumentError("hardware", ["inter_node: was not measured, although two nodes were profiled"])
    message = (
        f"the link between nodes was measured on {hardware.network_nodes} nodes ({measured.source}): "
        f"{link.bandwidth_bytes_per_second / _GIGABYTE:.3g} GB/s per device, "
        f"{link.latency_seconds * _SECOND_US:.3g} microseconds"
    )
    return (condition(ConditionType.NETWORK_MEASURED, Reason.NETWORK_MEASURED, message, holds=True),), ()


def network_not_measured(context: Context, hardware: HardwareStatus) -> Found:
    """Return the cause that a multi-node job's network is not measured; empty where it is, or where it has none."""
    if hardware.network_nodes or not wants_network(context.spec):
        return (), ()
    before = next((each for each in context.status.conditions if each.type == ConditionType.NETWORK_MEASURED), None)
    recorded = context.status.hardware
    is_same = recorded is not None and recorded.fingerprint == hardware.fingerprint
    known = is_same and before is not None and before.reason == Reason.NODES_DID_NOT_MEET
    if known or any(nodes_did_not_meet(context, job) for job in context.owned_jobs(names.PROFILER)):
        reason = Reason.NODES_DID_NOT_MEET
        what = "profilers on two nodes did not meet in time; hint: see that two nodes of the kind are free, and resume"
    else:
        reason = Reason.ONE_NODE
        what = "no two nodes of the kind that the job gets take its pods; hint: add or open one, and resume the job"
    message = f"the network between nodes was not measured, and {_USUAL}: {what}"
    found = (condition(ConditionType.NETWORK_MEASURED, reason, message, holds=False),)
    is_news = before is None or before.reason != reason
    return found, (Event(reason=EventReason.NETWORK_NOT_MEASURED, message=message),) if is_news else ()
