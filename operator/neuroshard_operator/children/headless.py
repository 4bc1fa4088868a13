"""Headless Services, which give the pods of an Indexed Job host names. Pure functions."""

from neuroshard_decisions import names
from neuroshard_decisions.context import Context

from neuroshard_operator.children.metadata import metadata
from neuroshard_operator.writes import Manifest


def headless_service(context: Context, name: str, role: str) -> Manifest:
    """Return the Service of a role. It names pods before they are ready, for that is when they meet."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(context, name, role),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_LABEL: context.name, names.ROLE_LABEL: role},
            "ports": [{"name": "rendezvous", "port": context.spec.experimental.rendezvous.port, "protocol": "TCP"}],
        },
    }
