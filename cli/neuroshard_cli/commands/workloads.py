"""``neuroshard workloads``: the public models that come with the package."""

import json as json_format

from neuroshard_cli.shared.output import print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption


def workloads(
    json: JsonOption = False,
) -> None:
    """List the bundled table sets of public models."""
    from neuroshard_planner.workload_store import read_workload, workload_names

    sets = {name: read_workload(name) for name in workload_names()}
    if json:
        rows = [
            {
                "name": name,
                "num_tables": len(tables.tables),
                "num_parameters": sum(each.num_embeddings * each.embedding_dim for each in tables.tables),
                "global_batch_size": tables.global_batch_size,
                "source": tables.source,
                "licence": tables.licence,
            }
            for name, tables in sets.items()
        ]
        print_document(json_format.dumps(rows, indent=1) + "\n")
        return
    from neuroshard_report.terminal.listings import render_workloads

    print_text(render_workloads(sets))
