"""What `/metrics` reads at the time of asking: queues, the query cache, and each open collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsearch.encoder import QueryCache
from dsearch.engine import Collection
from dsearch.errors import DsearchError
from dsearch.service.admission import Admission
from dsearch.service.catalogue import Catalogue
from dsearch.service.lag import Lag
from dsearch.service.metrics import Reading
from dsearch.service.worker import Worker


def readings_of(
    catalogue: Catalogue, cache: QueryCache, workers: Sequence[Worker], lag: Lag, admission: Admission
) -> list[Reading]:
    """Queue depths, the cache, and of every collection that is open what it shows."""
    readings: list[Reading] = [
        ("dsearch_queue_depth", "Jobs that wait.", {"worker": worker.name}, worker.depth)
        for worker in workers
    ]
    readings += [
        ("dsearch_event_loop_lag_seconds", "How late the event loop is.", {}, lag.seconds),
        ("dsearch_searches_admitted", "Searches that may be in the service at once.", {}, admission.limit),
        ("dsearch_query_cache_hits_total", "Queries whose embedding was kept.", {}, cache.hits),
        ("dsearch_query_cache_misses_total", "Queries that were encoded.", {}, cache.misses),
        ("dsearch_query_cache_bytes", "Bytes of kept embeddings.", {}, cache.bytes),
        ("dsearch_query_cache_entries", "Kept embeddings.", {}, len(cache)),
    ]
    for name in catalogue.opened():
        try:
            with catalogue.using(name) as collection:
                damaged = collection.verification["state"] == "damaged"
                label = {"collection": collection.name}
                readings.append(
                    ("dsearch_collection_damaged", "1 for an index that is damaged.", label, int(damaged))
                )
                readings += _of_collection(collection)
        except DsearchError:
            continue  # deleted since, or damaged: it says so to those who ask it
    return readings


def _of_collection(collection: Collection) -> Iterator[Reading]:
    label = {"collection": collection.name}
    model = {**label, "model": collection.live_model}
    snapshot = collection.snapshot
    yield "dsearch_collection_generation", "The generation that answers.", label, snapshot.generation.number
    yield "dsearch_collection_model", "1 for the model that answers.", model, 1
    yield "dsearch_collection_sequence", "The last operation that searches see.", label, snapshot.sequence
    if (drift := collection.query_drift) is not None:
        yield "dsearch_query_drift", "Distance of queries from training queries, in variances.", model, drift
    yield "dsearch_collection_documents", "Documents that can be found.", label, snapshot.documents
    yield "dsearch_collection_delta", "Documents written since the last build.", label, len(snapshot.fresh)
