"""What is checked before a training over shards begins, with a cluster that only listens."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from dsearch.cli.commands.train import ANSWER_S, task_over_shards
from dsearch.cluster import connection, coordinator, finetune, training, transfer
from dsearch.cluster.shards import remote
from dsearch.errors import Conflict, InvalidRequest, Unavailable

LIVE = {
    "collection": "papers",
    "uri": "uri",
    "digest": "digest",
    "generation": 1,
    "actors": [["a"]],
    "number": 7,
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    listening = MagicMock()
    listening.outcome.return_value = {"papers": LIVE}
    for module, names in {
        connection: ("connect",),
        coordinator: ("coordinator", "outcome"),
        transfer: ("read_release",),
        remote: ("RayShards",),
        finetune: ("over", "require_same_documents", "require_trainable"),
        training: ("ShardedCorpus",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(listening, name))
    return listening


@pytest.fixture
def papers() -> Any:
    collection = MagicMock()
    collection.name = "papers"
    return collection


def test_the_task_is_over_the_live_shards_with_time_for_a_step(cluster: MagicMock, papers: Any) -> None:
    options: Any = object()
    assert task_over_shards(papers, "auto", options) is cluster.over.return_value
    cluster.connect.assert_called_once_with("auto")
    cluster.require_trainable.assert_called_once_with(options)
    cluster.read_release.assert_called_once_with("uri")
    cluster.RayShards.assert_called_once_with(coordinator.LiveRelease(**LIVE), answer_s=ANSWER_S)
    corpus = cluster.ShardedCorpus.return_value
    cluster.require_same_documents.assert_called_once_with(corpus, papers)
    cluster.over.assert_called_once_with(corpus)


def test_shards_with_other_documents_train_nothing(cluster: MagicMock, papers: Any) -> None:
    cluster.require_same_documents.side_effect = Conflict("other documents")
    with pytest.raises(Conflict, match="other documents"):
        task_over_shards(papers, "auto", MagicMock())
    cluster.over.assert_not_called()


def test_options_that_do_not_train_over_shards_join_no_cluster(cluster: MagicMock, papers: Any) -> None:
    cluster.require_trainable.side_effect = InvalidRequest("no objective")
    with pytest.raises(InvalidRequest, match="no objective"):
        task_over_shards(papers, "auto", MagicMock())
    cluster.connect.assert_not_called()


def test_a_collection_that_is_not_published_is_named(cluster: MagicMock, papers: Any) -> None:
    cluster.outcome.return_value = {"others": LIVE}
    with pytest.raises(
        Unavailable, match="the cluster at auto has no shards of papers; start them"
    ) as refused:
        task_over_shards(papers, "auto", MagicMock())
    hint = refused.value.to_dict()["hint"]
    assert (hint["name"], list(hint["arguments"])) == ("cluster start", ["-c", "papers", "--ray", "auto"])
