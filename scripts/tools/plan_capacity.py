#!/usr/bin/env python3
"""Shards, memory and machines for a collection, by measured rates that are printed with the plan.

    python scripts/tools/plan_capacity.py --documents 1e8 --queries 50 --recall 0.95
    python scripts/tools/plan_capacity.py --documents 1e6 1e8 1e10        a line for each

The rates of keys were measured at 384 dimensions on one core of a small cloud machine; replace the
others by your own (--encode-query-ms, --encode-documents, --shard-ms, --ingress-ms; scripts/bench/cluster.py
measures the last two).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from dsearch.cluster.capacity import KINDS, MachineResources, Rates, plan
from dsearch.errors import InvalidRequest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=float, nargs="+", required=True)
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=float, default=10.0, help="a second, at the peak")
    parser.add_argument("--recall", type=float, default=0.95, help="recall@10 of the keys")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="the most CPU of a shard for a query")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--memory-gb", type=float, default=MachineResources().memory_gb, help="of a machine")
    parser.add_argument("--cores", type=int, default=MachineResources().cores, help="of a machine")
    parser.add_argument("--encode-query-ms", type=float, default=Rates().encode_query_ms)
    parser.add_argument("--encode-documents", type=float, default=Rates().encode_documents)
    parser.add_argument("--shard-ms", type=float, default=Rates().shard_ms)
    parser.add_argument("--ingress-ms", type=float, default=Rates().ingress_ms)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rates = Rates(options.encode_query_ms, options.encode_documents, options.shard_ms, options.ingress_ms)
    try:
        plans = {
            int(documents): plan(
                int(documents),
                dimensions=options.dimensions,
                queries_per_s=options.queries,
                recall=options.recall,
                shard_ms=options.latency_ms,
                replicas=options.replicas,
                machine=MachineResources(options.memory_gb, options.cores),
                rates=rates,
            )
            for documents in options.documents
        }
    except InvalidRequest as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps({documents: asdict(made) for documents, made in plans.items()}, indent=1))
        return
    print(f"measured, per core: {rates}")
    for kind in KINDS:
        print(f"  {kind.name}: recall {kind.recall}, {kind.source}")
    print("\n| documents | keys | shards × copies | memory a shard | disk | CPU a query ", end="")
    print("| cores | machines | encoding |\n|---|---|---|---|---|---|---|---|---|")
    for documents, made in plans.items():
        print(
            f"| {documents:,} | {made.kind.name} | {made.shards} × {made.replicas} | "
            f"{made.shard_memory_gb:.1f} GB | {made.disk_gb:,.0f} GB | {made.query_ms:,.0f} ms | "
            f"{made.cores:,.1f} | {made.machines:,} | {made.encode_hours * 60:,.0f} min |"
        )


if __name__ == "__main__":
    main()
