"""Bundle manifests: where cost models come from and how far they hold."""

import pytest
from neuroshard_api.documents.bundle import Calibration, Range
from support.builders import bundle_manifest, error_report, network


@pytest.mark.parametrize("source", ["measured:H100", "cpu:EPYC 7763", "simulated:h100-80gb"])
def test_a_source_names_kind_and_device(source: str) -> None:
    """Numbers always say where they come from."""
    assert bundle_manifest(source=source).source == source


@pytest.mark.parametrize("source", ["H100", "measured:", "guessed:H100", "Simulated:h100-80gb"])
def test_another_source_is_refused(source: str) -> None:
    """There are three kinds of sources and no others."""
    with pytest.raises(ValueError, match="source"):
        bundle_manifest(source=source)


def test_each_network_is_there_once() -> None:
    """A bundle without backward communication cannot cost a plan."""
    with pytest.raises(ValueError, match=r"each network must be there once, found compute, compute, compute"):
        bundle_manifest(networks=(network(), network(), network()))


def test_a_range_is_ordered() -> None:
    """A range without a value would warn about every table."""
    with pytest.raises(ValueError, match="low must not exceed high, found 2 and 1"):
        Range(low=2, high=1)


@pytest.mark.parametrize("fields", [{"mape": -0.1}, {"kendall_tau": 1.1}, {"num_samples": 0}])
def test_an_impossible_error_is_refused(fields: dict[str, float]) -> None:
    """An error report is a measurement, too."""
    with pytest.raises(ValueError, match=next(iter(fields))):
        error_report(**fields)


@pytest.mark.parametrize("digest", ["", "0" * 63, "G" * 64], ids=["empty", "short", "not-hexadecimal"])
def test_the_weights_hash_is_a_sha256(digest: str) -> None:
    """A damaged weight file is found by its hash."""
    with pytest.raises(ValueError, match="weights_sha256"):
        bundle_manifest(weights_sha256=digest)


@pytest.mark.parametrize(
    ("source", "calibrated_to", "expected"),
    [
        ("simulated:A GPU", None, (None, None)),
        ("cpu:A CPU", None, (0.03, 0.03)),
        ("simulated:A GPU", "measured:A GPU", (0.1, None)),
        ("simulated:A GPU", "simulated:Another GPU", (None, None)),
        ("cpu:A CPU", "simulated:A GPU", (None, 0.03)),
    ],
    ids=[
        "simulated",
        "fitted to measurements",
        "compute calibrated to measurements",
        "calibrated to the simulator",
        "fitted to measurements, compute calibrated to the simulator",
    ],
)
def test_an_error_against_reality_needs_measurements(
    source: str, calibrated_to: str | None, expected: tuple[float | None, float | None]
) -> None:
    """A hold-out error of networks that repeat the simulator is none; nor has a network one that was not rescaled."""
    calibration = calibrated_to and Calibration(
        source=calibrated_to,
        num_records=8,
        compute_scale=(1.0, 2.0),
        mape_before=0.5,
        mape_after=0.2,
        mape_after_by={"compute": 0.1},
    )
    manifest = bundle_manifest(source=source, calibration=calibration)

    assert (manifest.measured_mape("compute"), manifest.measured_mape("forward_communication")) == expected


def test_an_error_of_all_networks_together_is_no_networks_own() -> None:
    """Older bundles know only the mean over compute and exchanges; it is given out as the error of neither."""
    calibration = Calibration(
        source="measured:A GPU", num_records=8, compute_scale=(1.0, 2.0), mape_before=0.5, mape_after=0.1
    )

    assert bundle_manifest(source="cpu:A CPU", calibration=calibration).measured_mape("compute") is None


def test_measured_compute_is_trusted_beside_simulated_exchanges() -> None:
    """A profile without exchanges is labelled simulated; its compute times were held against measurements."""
    manifest = bundle_manifest(source="simulated:A GPU", compute_source="measured:A GPU")

    assert manifest.measured_mape("compute") == 0.03
    assert manifest.measured_mape("backward_communication") is None
