"""`dsearch train --ray`: steps of training over the shards of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsearch.errors import Command, Unavailable

if TYPE_CHECKING:
    from dsearch.engine import Collection
    from dsearch.training import TrainingOptions
    from dsearch.training.scopes.head import MakeTask

ANSWER_S = 60.0  # a step over a large shard takes longer than a search


def task_over_shards(collection: Collection, address: str, options: TrainingOptions) -> MakeTask:
    """Return the task that computes each training step on the collection's live shards.

    Raises:
        MissingExtra, Unavailable: no cluster at the address, or it does not serve the collection.
        Conflict: the shards have other documents than the collection.
        InvalidRequest, NotInCluster: options or documents that do not train over shards.
    """
    from dsearch.cluster.connection import connect
    from dsearch.cluster.coordinator import LiveRelease, coordinator, outcome
    from dsearch.cluster.finetune import over, require_same_documents, require_trainable
    from dsearch.cluster.shards.remote import RayShards
    from dsearch.cluster.training import ShardedCorpus
    from dsearch.cluster.transfer import read_release

    require_trainable(options)
    connect(address)
    described = outcome(coordinator().live.remote()).get(collection.name)
    if described is None:
        raise Unavailable(
            f"the cluster at {address} has no shards of {collection.name}; start them",
            hint=Command("cluster start", ("-c", collection.name, "--ray", address)),
        )
    live = LiveRelease(**described)
    corpus = ShardedCorpus(read_release(live.uri), RayShards(live, answer_s=ANSWER_S))
    require_same_documents(corpus, collection)
    return over(corpus)
