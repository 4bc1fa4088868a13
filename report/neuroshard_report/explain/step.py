"""The whole step of a plan in sentences: what bounds it, and what share of it the plan decides."""

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import BaselineCost
from neuroshard_api.documents.whole_step import WholeStep
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.served_cost import hidden_ms

SMALL_GAIN = 0.01  # of the step; a smaller one is none


def step_text(plan: Plan) -> str | None:
    """Return the time of a step, and its cause, in a sentence. None: the plan is of an earlier release.

    Without a counted dense part the step is a lower limit.
    """
    return None if plan.step is None else f"{_whole(plan, plan.step)}{_ahead(plan)}"


def _whole(plan: Plan, step: WholeStep) -> str:
    host, on_cpu = step.host, plan.request.topology.device.is_cpu
    needs = f"{host.total_ms:.2f} ms ({_basis(step)})"
    if step.dense_ms is None:
        whose = "which the host needs" if step.is_host_bound else f"of which the host needs {host.total_ms:.2f} ms"
        if not step.is_host_bound and not on_cpu:
            whose = f"while the host needs {host.total_ms:.2f} ms"
        bound = ""
        if step.is_host_bound:
            rest = "it" if step.matrices_ms is None else "the rest of it"
            bound = f"; while {rest} takes the devices less than {host.total_ms - step.device_ms:.2f} ms, {_lost(plan)}"
        return (
            f"at least {step.total_ms:.2f} ms, {whose} for TorchRec's part alone ({_basis(step)}); "
            f"{_uncounted(plan, step)}{bound}{_types(plan)}"
        )
    if step.is_host_bound:
        return (
            f"{step.total_ms:.2f} ms, bound by the host: it needs {needs}, the devices {step.device_ms:.2f} ms; "
            f"{_lost(plan)}{_types(plan)}"
        )
    parts = f"embedding part {step.embedding_ms:.2f} ms, dense part {step.dense_ms:.2f} ms"
    share = f"the plan decides {100 * step.decided_share:.0f} % of it"
    if on_cpu:
        return f"{step.total_ms:.2f} ms: {parts}, the host's own work {needs}; {share}"
    return f"{step.total_ms:.2f} ms: {parts}; {share}; the host needs {needs} meanwhile"


def _ahead(plan: Plan) -> str:
    """Return a clause on servers that are asked ahead; empty: there are none."""
    cost, served = plan.predicted.devices[plan.slowest_device], plan.servers
    if served is None or not plan.request.looks_ahead or cost.server_ms is None or served.predicted is None:
        return ""
    hides_ms = cost.server_hidden_ms or 0.0
    gained_ms = hides_ms - hidden_ms(plan.predicted, served.predicted, None)
    is_small = plan.step is not None and gained_ms < SMALL_GAIN * plan.step.total_ms
    gains = "; it gains nothing, for a step without it takes no longer" if is_small else ""
    hidden = f"{hides_ms:.2f} ms behind the step before{gains}"
    return f"; embedding servers take {cost.server_ms:.2f} ms, of which lookahead hides {hidden}"


def step_gain(plan: Plan, baseline: BaselineCost) -> float | None:
    """Return the share of a step that the plan saves next to a baseline; negative if it is slower.

    None: it is not known, since the dense part is not counted, or one of them has no price of a step.
    """
    step = plan.step
    if step is None or step.dense_ms is None or not baseline.step_ms:
        return None
    return 1 - step.total_ms / baseline.step_ms


def once_per_list(plan: Plan) -> str | None:
    """Return a clause on groups whose part of the first product is computed once per list. None: there are none."""
    found = {
        each.group: each.product_saved_ms for each in plan.deduplication or () if each.product_saved_ms is not None
    }
    if not found:
        return None
    return once_text(f"the part of {', '.join(found)}", sum(found.values()))


def once_text(part: str, saved_ms: float) -> str:
    """Return a clause on a part of the first product that is computed once per list."""
    saved = f"saves {saved_ms:.3g} ms of the dense part"
    return f"the first product with all features takes {part} once per list, which {saved}"


def _uncounted(plan: Plan, step: WholeStep) -> str:
    """Return a clause on a dense part that was not counted, with what is known of it."""
    matrices = plan.request.dense_matrices
    if matrices is None or step.matrices_ms is None:
        return "the dense part is not counted"
    names = f"{', '.join(matrices.largest)}{', ...' if matrices.is_shortened else ''}"
    return (
        f"of the dense part the products with its {matrices.num_matrices} weight matrices alone are counted, "
        f"{step.matrices_ms:.2f} ms ({names})"
    )


def _basis(step: WholeStep) -> str:
    kind, _, machine = step.host.source.partition(":")
    return f"measured on {machine}" if kind == "measured" else "assumed"


def _remedies(plan: Plan) -> str:
    several = len({table.collection for table in plan.request.tables.tables}) > 1
    return f"larger batches, {'fewer collections, ' if several else ''}or CUDA graphs of the dense part"


def _lost(plan: Plan) -> str:
    """Return a clause on what a host-bound step gains by a better plan, and what shortens it."""
    better = "a better plan" if len(_families(plan)) == 1 else "a better plan with as many families of sharding types"
    return f"{better} changes nothing; {_remedies(plan)} would"


def _families(plan: Plan) -> frozenset[Family]:
    return frozenset(Family.of(table.sharding_type) for table in plan.tables)


def _types(plan: Plan) -> str:
    """Return a clause on the host's work where it is longer than the devices', and the plan has several families."""
    step = plan.step
    if len(_families(plan)) == 1 or step is None or step.host.total_ms <= step.device_ms:
        return ""
    clause = "; each family of sharding types has exchanges and lookups of its own there"
    found = [(each.step_ms, each.algorithm) for each in plan.baselines if each.step_ms is not None]
    least_ms, algorithm = min(found, default=(step.total_ms, None))
    if least_ms >= step.total_ms:
        return clause
    field = plan.request.in_its_names("constraints.sharding_types")
    lower = "" if step.dense_ms is not None else "at least "
    return f"{clause}: the step of {algorithm} takes {lower}{least_ms:.2f} ms; {field} restricts them"
