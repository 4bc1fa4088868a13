"""`make demo-cluster`: from an empty test cluster to a trained job, with the commands that a user would type."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.operator_release import CHART, NAMESPACE, RELEASE, ROOT, installed
from neuroshard_cluster.folders import default_home
from neuroshard_cluster.providers import PROVIDERS, open_cluster

EXAMPLE = ROOT / "examples" / "07-mocked-gpus.yaml"
JOB = "mocked-gpus"
KEPT_NAMESPACE = "demo"


def say(line: str) -> None:
    """Print a line on the progress."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the operator on a test cluster, apply the example, and watch it to its end."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--name", required=True, help="the test cluster, which is up")
    parser.add_argument("--provider", default="auto", choices=PROVIDERS)
    options = parser.parse_args(arguments)
    cluster = open_cluster(options.name, provider=options.provider, home=default_home())
    say(f"$ helm upgrade --install {RELEASE} {CHART.relative_to(ROOT)} --namespace {NAMESPACE}")
    installed(cluster)
    kubectl = cluster.kubectl.in_namespace(KEPT_NAMESPACE)
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KEPT_NAMESPACE}})
    kubectl.delete("dlrmtrainingjob", JOB)
    say(f"$ kubectl apply --filename {EXAMPLE.relative_to(ROOT)}")
    kubectl.apply(EXAMPLE.read_text())
    say(f"$ neuroshard status {JOB} --watch")
    neuroshard = Path(sys.executable).with_name("neuroshard")
    watch = [str(neuroshard), "status", JOB, "--namespace", KEPT_NAMESPACE, "--watch"]
    ended = subprocess.run(watch, env=kubectl.environment, check=False)
    say(f"$ kubectl get dlrmtrainingjob\n{kubectl('get', 'dlrmtrainingjob')}")
    say(f"The cluster stays up: export KUBECONFIG={kubectl.kubeconfig}; make cluster-down CLUSTER_NAME={options.name}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
