"""Specification of what is read of the hardware."""

import os
from pathlib import Path

import pytest
from neuroshard_profiler import hardware
from neuroshard_profiler.hardware import (
    available_memory_bytes,
    cpu_device,
    cpu_model,
    cpu_name,
    fingerprint,
    total_memory_bytes,
)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cpu-intel-xeon-platinum-8481c-cpu"),
        ("AMD EPYC 9654 96-Core Processor", "cpu-amd-epyc-9654-96-core-processor"),
        ("x86_64", "cpu-x86-64"),
    ],
)
def test_a_processor_gets_a_name_for_files(model: str, name: str) -> None:
    """Without trade marks and clock, so that equal processors are called alike."""
    assert cpu_name(model) == name


def test_a_core_of_this_machine_is_a_device() -> None:
    """Its share of the memory, and bandwidths that a copy really reached."""
    device = cpu_device(num_processes=2, core=max(os.sched_getaffinity(0)))

    assert device.product == cpu_model()
    assert 2**20 < device.memory_bytes <= total_memory_bytes() / 2
    assert 1e7 < device.memory_bandwidth_bytes_per_second < 1e12
    assert device.cache_bytes > 0


@pytest.mark.parametrize(
    ("limit", "use"),
    [("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")],
    ids=["version-2", "version-1"],
)
def test_a_control_groups_limit_is_the_memory_there_is(
    limit: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either version of control groups."""
    monkeypatch.setattr(hardware, "_GROUP_SYSFS", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / limit).write_text(f"{2**20}\n")
    (tmp_path / use).write_text(f"{2**18}\n")

    assert total_memory_bytes() == 2**20
    assert available_memory_bytes() == 2**20 - 2**18


def test_no_more_memory_is_available_than_there_is() -> None:
    """A control group's limit counts as the machine's."""
    assert 0 < available_memory_bytes() <= total_memory_bytes()


def test_a_fingerprint_follows_from_the_facts() -> None:
    """A new driver is another profile; the order in which facts are found is not."""
    facts = {"product": "GPU", "driver": "570.1"}

    assert fingerprint(facts) == fingerprint(dict(reversed(facts.items())))
    assert fingerprint(facts) != fingerprint({**facts, "driver": "570.2"})
    assert len(fingerprint(facts)) == 64
