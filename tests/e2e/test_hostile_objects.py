"""Five minutes of objects that tenants, kubelets, and controllers may write and that wish the operator ill."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from e2e.tenant import Tenant
from e2e.test_tenants import MEMORY_LIMIT_KIB, foreign, peak_kib_of
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.long, pytest.mark.usefixtures("operator")]

SECONDS = 300.0
LEAST_TAKEN = 20


class Good:
    """One good job after the other, each of which must succeed."""

    def __init__(self, where: Namespace) -> None:
        self._kubectl = where.kubectl
        self.took_s: list[float] = []
        self._began = 0.0

    def look(self) -> None:
        """Start a job where none is under way, and note the end of one that is."""
        name = f"good-{len(self.took_s)}"
        if not self._began:
            self._kubectl.apply(jobs.script_job(name, "true"))
            self._began = time.monotonic()
            return
        seen: Mapping[str, Any] = jobs.status(self._kubectl, name)
        assert seen.get("stage") != "Failed", seen
        if seen.get("stage") == "Succeeded":
            self.took_s.append(time.monotonic() - self._began)
            self._began = 0.0

    def finish(self) -> None:
        """Wait for the job that is under way, and for one more."""
        for _ in range(2):
            name = f"good-{len(self.took_s)}"
            if not self._began:
                self.look()
            jobs.wait_for_stage(self._kubectl, name, "Succeeded")
            self.look()


def test_good_jobs_are_served_next_to_five_minutes_of_hostile_objects(
    release: Release, cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    """Throughout, and by an operator that starts next to what is there; it keeps below 256 MiB and is not restarted."""
    before, good, began = release.restarts(), Good(namespace), time.monotonic()
    [operator] = release.pods()
    with foreign(cluster, f"{namespace.name}-other") as other:
        tenants = Tenant(other, tmp_path, seed=0), Tenant(namespace, tmp_path, seed=1)
        number = 0
        while time.monotonic() < began + SECONDS:
            tenants[number % 2].write()
            good.look()
            number += 1
        good.finish()
        served = len(good.took_s)
        peaks_kib = [peak_kib_of(operator)]
        assert release.restarts() == before
        release.kill()
        good.finish()
        peaks_kib.append(peak_kib_of(release.leader()))
    story = {
        "taken": [tenant.taken for tenant in tenants],
        "refused": [tenant.refused for tenant in tenants],
        "seconds of good jobs": [round(each, 1) for each in good.took_s],
        "peak KiB": peaks_kib,
    }
    namespace.artifacts.mkdir(parents=True, exist_ok=True)
    (namespace.artifacts / "hostile.json").write_text(json.dumps(story, indent=1))

    assert served >= 5
    assert all(tenant.taken.total() >= LEAST_TAKEN for tenant in tenants), story
    assert max(peaks_kib) < MEMORY_LIMIT_KIB
