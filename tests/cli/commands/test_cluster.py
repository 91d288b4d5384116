"""`dsearch cluster`: when a Ray is joined or started, what is shown of shards, and how all of it ends."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

import pytest
from support.cli.terminal import Terminal

from dsearch.cli.commands.serve import _joined_or_started
from dsearch.errors import Unavailable

ELSEWHERE, HERE = "10.0.0.7:6379", "127.0.0.1:6379"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A cluster that only listens."""
    listening = MagicMock()
    for module, names in {
        "connection": ("connect", "answers", "start_head", "stop_head"),
        "coordinator": ("coordinator", "outcome", "copies_up", "stop_all"),
    }.items():
        for name in names:
            monkeypatch.setattr(f"dsearch.cluster.{module}.{name}", getattr(listening, name))
    listening.start_head.side_effect = lambda address: f"started {address}"
    return listening


@pytest.mark.parametrize(
    ("address", "there", "expected"),
    [
        ("auto", True, "auto"),
        ("auto", False, "started auto"),
        (HERE, True, HERE),
        (HERE, False, f"started {HERE}"),
        (ELSEWHERE, True, ELSEWHERE),
    ],
)
def test_a_ray_is_started_on_this_machine_alone_and_where_none_runs(
    cluster: MagicMock, address: str, there: bool, expected: str
) -> None:
    cluster.answers.return_value = there
    cluster.connect.side_effect = None if there else Unavailable("nothing listens there")
    assert _joined_or_started(address) == expected
    assert cluster.start_head.call_count == (not there)


def test_none_is_started_in_place_of_one_elsewhere(cluster: MagicMock) -> None:
    cluster.answers.return_value = False
    cluster.connect.side_effect = Unavailable("nothing listens there")
    with pytest.raises(Unavailable, match="nothing listens there"):
        _joined_or_started(ELSEWHERE)
    cluster.start_head.assert_not_called()


def live(name: str, generation: int) -> dict[str, Any]:
    of_all = {"collection": name, "uri": f"/{name}", "digest": "d", "generation": generation}
    return {**of_all, "actors": [["a"]], "number": 1}


def test_shards_of_which_no_copy_answers_are_lost(dsearch: Terminal, cluster: MagicMock) -> None:
    copies = {"papers": [[True, False], [False, False]], "books": [[True, True]]}
    cluster.outcome.return_value = {"papers": live("papers", 2), "books": live("books", 7)}
    cluster.copies_up.side_effect = lambda release: copies[release.collection]
    code, out, err = dsearch("cluster", "status")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "books: generation 7, /books",
        "  shard 0: 2 of 2 copies answer",
        "papers: generation 2, /papers",
        "  shard 0: 1 of 2 copies answer",
        "  shard 1: 0 of 2 copies answer  (lost)",
    ]
    told = json.loads(dsearch("cluster", "status", "--json")[1])
    assert [(one["collection"], one["copies"]) for one in told] == [
        ("books", copies["books"]),
        ("papers", copies["papers"]),
    ]
    cluster.outcome.return_value = {}
    assert dsearch("cluster", "status")[1].startswith("no collection answers here; publish one with: ")


@pytest.mark.parametrize(
    ("ours", "answered", "text"),
    [
        (True, True, "stopped, and Ray too"),
        (False, True, "stopped; Ray itself goes on: it was there before"),
        (True, False, "stopped; no collection answered there"),
        (False, False, None),
    ],
)
def test_a_ray_is_stopped_where_it_was_started_here(
    dsearch: Terminal, cluster: MagicMock, ours: bool, answered: bool, text: str | None
) -> None:
    cluster.stop_head.return_value = ours
    cluster.stop_all.side_effect = None if answered else Unavailable("nothing of dsearch runs there")
    code, out, err = dsearch("cluster", "stop")
    assert (code, out) == ((0, f"{text}\n") if text else (1, ""))
    assert ("nothing of dsearch runs there" in err) == (text is None)
    if text:
        assert json.loads(dsearch("cluster", "stop", "--json")[1]) == {"stopped": True, "ray": ours}
