"""Capacity planning: the number of shards and machines and the memory, computed from measured rates.

Every query runs on every shard, so its cost is shards × (a fixed part + the search of one shard). Replicas
add capacity for simultaneous queries and tolerate the loss of a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsearch.errors import InvalidRequest

POSTINGS_BYTES = 400  # keyword postings and sequences of a document of a few hundred words
TEXT_BYTES = 2_000  # text and metadata of a document, on disk
DISK_PER_EMBEDDING = 4  # bytes a number: embeddings are stored in full precision, mapped


@dataclass(frozen=True, slots=True)
class KeyKind:
    """A kind of keys, measured at 384 dimensions.

    Attributes:
        name: name of the kind.
        recall: its recall@10.
        bytes_per_number: memory of a key, for each of its numbers.
        million_ms: CPU time of one query against a million keys.
        grows: exponent of that time's growth with the number of keys; 1 for a scan.
        source: origin of the figures.
    """

    name: str
    recall: float
    bytes_per_number: float
    million_ms: float
    grows: float
    source: str


# CPU time of one core of a small cloud machine; ratios carry over, absolute times do not.
KINDS = (
    KeyKind("IVFPQ", 0.972, 506 / 384, 1000 / 7142, 0.5, "1 M keys, 7,142 queries/s a core, 506 bytes each"),
    KeyKind("IVFPQ, more probes", 0.99, 506 / 384, 1000 / 3571, 0.5, "half of that rate: an assumption"),
    KeyKind("SQ8", 0.994, 1.0, 25.0, 1.0, "1 M keys scanned in 25 ms"),
    KeyKind("Flat", 1.0, 4.0, 62.0, 1.0, "1 M keys scanned in 62 ms"),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates that do not depend on the number of documents; replace the defaults by your own measurements.

    Attributes:
        encode_query_ms: CPU time of encoding one query.
        encode_documents: documents encoded per second and core.
        shard_ms: CPU time of one query on one shard, without the search of its keys; Ray's calls included.
        ingress_ms: CPU time of one query at the ingress, HTTP and merging included.
    """

    encode_query_ms: float = 5.4
    encode_documents: float = 260.0
    shard_ms: float = 2.0
    ingress_ms: float = 5.0


@dataclass(frozen=True, slots=True)
class MachineResources:
    """Resources of a machine, and the share of them to plan with."""

    memory_gb: float = 64.0
    cores: int = 16
    share: float = 0.6


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Resources that a collection needs.

    Attributes:
        kind: kind of keys.
        shards: number of shards.
        replicas: number of copies of each shard.
        shard_documents: number of documents of one shard.
        shard_memory_gb: resident memory of one copy of one shard.
        disk_gb: disk space of all copies.
        query_ms: CPU time of one query, all shards together.
        slowest_ms: CPU time of one shard for one query, a lower bound on the latency.
        cores: busy cores at the requested queries per second.
        machines: number of machines for shards, encoders and ingresses.
        encode_hours: time to encode everything once, on all these cores.
    """

    kind: KeyKind
    shards: int
    replicas: int
    shard_documents: int
    shard_memory_gb: float
    disk_gb: float
    query_ms: float
    slowest_ms: float
    cores: float
    machines: int
    encode_hours: float


def plan(
    documents: int,
    *,
    dimensions: int = 384,
    queries_per_s: int | float = 10.0,
    recall: float = 0.95,
    shard_ms: int | float = 50.0,
    replicas: int = 2,
    machine: MachineResources | None = None,
    rates: Rates | None = None,
) -> CapacityPlan:
    """Plan a cluster.

    Args:
        documents: number of documents.
        dimensions: length of an embedding.
        queries_per_s: peak load.
        recall: required recall@10 of the keys.
        shard_ms: maximum CPU time of the search of one shard's keys; `Rates.shard_ms` comes on top.
        replicas: minimum number of copies of each shard; 2 survive the loss of one machine.
        machine: resources of each machine.
        rates: measured rates.

    Raises:
        InvalidRequest: a number is 0 or less, or the recall is above 1.
    """
    for name, value in {
        "documents": documents,
        "dimensions": dimensions,
        "queries_per_s": queries_per_s,
        "shard_ms": shard_ms,
        "replicas": replicas,
    }.items():
        if not value > 0:
            raise InvalidRequest(f"{name}={value}; use a number above 0")
    if not 0 < recall <= 1:
        raise InvalidRequest(f"recall={recall}; use a number above 0, at most 1")
    machine, rates = machine or MachineResources(), rates or Rates()
    kind = min(
        (kind for kind in KINDS if kind.recall >= recall),
        key=lambda kind: _search_ms(kind, min(documents, 1_000_000), dimensions),
    )
    resident = dimensions * kind.bytes_per_number + POSTINGS_BYTES
    usable = machine.memory_gb * machine.share
    by_memory = math.ceil(documents * resident / 1e9 / usable)
    per_shard = int((shard_ms / _search_ms(kind, 1_000_000, dimensions)) ** (1 / kind.grows) * 1e6) or 1
    shards = max(1, by_memory, math.ceil(documents / per_shard))
    shard_documents = math.ceil(documents / shards)
    slowest = rates.shard_ms + _search_ms(kind, shard_documents, dimensions)
    query_ms = shards * slowest + rates.ingress_ms + rates.encode_query_ms
    cores = queries_per_s * query_ms / 1000
    memory_gb = shard_documents * resident / 1e9
    for_cores = math.ceil(cores / (machine.cores * machine.share))
    of_machine = max(1, int(usable / memory_gb + 1e-9))  # copies are whole: a machine has no part of one
    for_memory = math.ceil(shards * replicas / of_machine)
    on_disk = dimensions * (DISK_PER_EMBEDDING + kind.bytes_per_number) + POSTINGS_BYTES + TEXT_BYTES
    machines = max(for_cores, for_memory, replicas)
    return CapacityPlan(
        kind=kind,
        shards=shards,
        replicas=replicas,
        shard_documents=shard_documents,
        shard_memory_gb=memory_gb,
        disk_gb=documents * on_disk * replicas / 1e9,
        query_ms=query_ms,
        slowest_ms=slowest,
        cores=cores,
        machines=machines,
        encode_hours=documents / rates.encode_documents / (machines * machine.cores) / 3600,
    )


def _search_ms(kind: KeyKind, documents: int, dimensions: int) -> float:
    """CPU time of one query against `documents` keys; proportional to the dimensions."""
    return kind.million_ms * (documents / 1e6) ** kind.grows * dimensions / 384
