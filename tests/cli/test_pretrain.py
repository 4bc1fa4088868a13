from pathlib import Path
from typing import Any

import pytest
from neuroshard_costs.bundle import load_bundle
from support.cli.searches import quick


@pytest.mark.torch
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of torch and matplotlib
def test_a_bundle_is_trained(neuroshard: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest run: a bundle that plans, labelled as simulated, and its error is printed."""
    pytest.importorskip("torch")
    from neuroshard_costs.pretrain.train import PretrainSettings

    out = tmp_path / "bundle"
    tiny = PretrainSettings(
        num_compute_samples=300, num_communication_samples=300, compute_epochs=1, communication_epochs=1
    )
    monkeypatch.setattr("neuroshard_costs.pretrain.train.PretrainSettings", lambda: tiny)
    trained = neuroshard("pretrain", "--device-type", "h100-80gb", "--out", out)
    planned = neuroshard("plan", "criteo-kaggle", *quick(2), "--bundle", out, "--json")

    assert (trained.code, trained.err) == (0, f"bundle written to {out}\n")
    assert "simulated:" in trained.out
    assert "Kendall tau" in trained.out
    assert load_bundle(out).manifest.training["num_compute_samples"] == 300
    assert planned.code == 0


def test_a_device_that_is_not_known_is_a_sentence(neuroshard: Any, tmp_path: Path) -> None:
    """The known ones are listed, and nothing is written."""
    pytest.importorskip("torch")
    result = neuroshard("pretrain", "--device-type", "h100", "--out", tmp_path / "bundle")

    assert (result.code, result.out) == (2, "")
    assert "h100-80gb" in result.err
    assert list(tmp_path.iterdir()) == []
