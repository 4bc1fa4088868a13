"""How far a plan's predicted times can be trusted: the error on measurements where one is known, and where it is not.

A hold-out error of networks that were trained on the simulator says how well they repeat the simulator. It bounds the
error on a real device from neither side, and is never shown without saying so.
"""

from dataclasses import dataclass

from neuroshard_api.documents.plan_parts import BundleReference


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """The error of one network on held-out samples, and what these were."""

    part: str
    """``compute`` or ``communication``."""
    error: float
    """Mean absolute error as a share of the true value."""
    is_measured: bool
    """Whether the samples were measured on a real device. Otherwise they came from the simulator."""


def trust_of(bundle: BundleReference) -> tuple[Trust, Trust]:
    """Return the trust in a bundle's compute and communication times: against reality where that error is known."""
    found = (
        ("compute", bundle.measured_compute_mape, bundle.compute_mape),
        ("communication", bundle.measured_communication_mape, bundle.communication_mape),
    )
    compute, communication = (
        Trust(part=part, error=simulated if measured is None else measured, is_measured=measured is not None)
        for part, measured, simulated in found
    )
    return compute, communication


def basis_of(bundle: BundleReference) -> str:
    """Return the reference of a bundle's errors, as the end of a sentence."""
    simulated = [each.part for each in trust_of(bundle) if not each.is_measured]
    if not simulated:
        return "on held-out measurements"
    if len(simulated) > 1:
        return "against the simulator only; the error on a real device is not known"
    return f"on held-out measurements, of {simulated[0]} against the simulator only"


def trust_text(bundle: BundleReference) -> str:
    """Return both errors with what they hold against, for one line."""
    errors = ", ".join(f"{each.part} {100 * each.error:.1f} %" for each in trust_of(bundle))
    return f"{errors} {basis_of(bundle)}"
