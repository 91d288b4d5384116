"""From a search over HTTP, a click and its event to a head that answers; and feedback on the command line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.fakes import HashingEncoder
from support.service.apps import patient_app

from dsearch.attention.retrieval.head import Head
from dsearch.cli import main
from dsearch.encoder import Encoder
from dsearch.engine import SearchEngine
from dsearch.store import Event, FeedbackStore, Impression, MemoryRow
from dsearch.types import Document

COUNT = 60
URL = "/v1/collections/t"
QUERIES = [f"question{i % 20} colour{i % 3} asked{i}" for i in range(COUNT)]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Documents that share no word with the queries that they answer."""
    with SearchEngine(tmp_path / "home", encoder=HashingEncoder) as engine:
        engine.create("t").ingest(
            [Document(id=f"d{i}", text=f"answer{i % 20} tint{i % 3} filler{i}") for i in range(COUNT)]
        )
    return tmp_path / "home"


@pytest.fixture
def dsearch(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    monkeypatch.setenv("DSEARCH_HOME", str(home))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dsearch", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def use(home: Path, clients: dict[str, int]) -> None:
    """Each client searches for everything and clicks the document `shift` behind the answer."""
    with (
        SearchEngine(home, encoder=HashingEncoder) as engine,
        TestClient(patient_app(engine), base_url="http://127.0.0.1") as browser,
    ):
        for client, shift in clients.items():
            asked = {"queries": QUERIES, "limit": COUNT, "explore": 0.2}
            pages = browser.post(f"{URL}/search/batch", json=asked).json()["results"]
            events = [
                {
                    "query_id": page["query_id"],
                    "client_id": client,
                    "action_name": "click",
                    "object_id": f"d{(i + shift) % COUNT}",
                }
                for i, page in enumerate(pages)
            ]
            sent = browser.post(f"{URL}/feedback", json=events)
            assert sent.json() == {"events": COUNT, "repeated": 0}, sent.text


TRAIN = ("train", "-c", "t", "--from", "feedback", "--epochs", "40", "--learning-rate", "1e-2")
EXACT = {"anna": 0, "ben": 0, "trusted": 0}


def first_hits(home: Path) -> int:
    with SearchEngine(home, readonly=True, encoder=HashingEncoder) as engine:
        found = engine.collection("t").search_batch(QUERIES, limit=1)
    return sum(result.hits[0].id == f"d{i}" for i, result in enumerate(found))


def test_search_click_train_and_it_answers_better(home: Path, dsearch: Run) -> None:
    use(home, EXACT)
    before = first_hits(home)
    code, out, err = dsearch(*TRAIN, "--trusted-keys", "client:trusted")
    assert code == 0, out + err
    assert "feedback: 120 clicks of 2 keys" in err
    assert "gate: passed" in out
    assert "v1 is live now" in out
    assert first_hits(home) > before + 20
    code, out, _ = dsearch("models", "-c", "t", "--json")
    record = json.loads(out)[1]["record"]
    assert record["feedback"]["clicks"] == 120
    assert record["trusted_queries"] == COUNT


def test_without_trust_nobody_can_tell(home: Path, dsearch: Run) -> None:
    use(home, EXACT)
    code, out, _ = dsearch(*TRAIN)
    assert code == 3
    assert "gate: cannot tell: trained from clicks, which anybody can poison" in out
    code, out, _ = dsearch(*TRAIN, "--accept")
    assert code == 0
    assert "v2 is live now" in out


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        (("--from", "elsewhere"), "--from elsewhere; use feedback"),
        (("--from", "feedback"), "no feedback of 't' to learn from: there is none"),
        (("--trusted-keys", "a"), "--trusted-keys needs --from feedback"),
        (("--from", "feedback", "--self-supervised"), "leave out --self-supervised"),
        (("--from", "feedback", "--trusted-keys", " ,"), "--trusted-keys is empty"),
        (("--from", "feedback", "--trusted-keys", "a", "--data", "x"), "not both"),
        ((), "give one of: --data; --self-supervised; --from feedback; --objective context with --field"),
    ],
)
def test_what_does_not_go_together(dsearch: Run, arguments: tuple[str, ...], detail: str) -> None:
    code, _, err = dsearch("train", "-c", "t", *arguments)
    assert code not in (0, 3)
    assert detail in " ".join(err.split())


def test_stats_export_and_clear(home: Path, dsearch: Run, tmp_path: Path) -> None:
    code, out, _ = dsearch("feedback", "stats", "-c", "t")
    assert (code, out.splitlines()[0]) == (0, "t: 0 events (none) on 0 pages")
    use(home, EXACT)
    code, out, _ = dsearch("feedback", "stats", "-c", "t", "--json")
    found = json.loads(out)
    assert (found["events"], found["impressions"], found["keys"]) == (180, 180, 3)
    assert 5 < found["randomised"] < 90
    code, out, _ = dsearch("feedback", "stats", "-c", "t")
    assert "t: 180 events (click: 180) on 180 pages" in out

    file = tmp_path / "feedback.jsonl"
    assert dsearch("feedback", "export", "-c", "t", "-o", file)[0] == 0
    pages = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(pages) == 180
    event = pages[0]["events"][0]
    place = event["event_attributes"]["position"]["ordinal"]
    assert pages[0]["query_response_hit_ids"][place - 1] == event["object_id"]
    assert set(pages[0]) >= {"query_id", "user_query", "timestamp", "randomised"}
    code, _, err = dsearch("feedback", "export", "-c", "t", "-o", file)
    assert code != 0
    assert "exists" in err

    code, _, err = dsearch("feedback", "clear", "-c", "t")
    assert code != 0
    assert "--all" in err
    assert "t: 60 events deleted" in dsearch("feedback", "clear", "-c", "t", "--client", "ben")[1]
    assert "t: 0 events deleted" in dsearch("feedback", "clear", "-c", "t", "--older-than", "1")[1]
    assert "t: 60 events deleted" in dsearch("feedback", "clear", "-c", "t", "--key", "client:anna")[1]
    assert "t: 60 events deleted" in dsearch("feedback", "clear", "-c", "t", "--all")[1]
    assert "t: 0 damaged rows deleted" in dsearch("feedback", "clear", "-c", "t", "--damaged")[1]
    assert dsearch("feedback", "stats", "-c", "none")[0] != 0


def test_feedback_is_cleared_while_a_server_runs(home: Path, dsearch: Run) -> None:
    use(home, {"anna": 0})
    with SearchEngine(home, encoder=HashingEncoder):  # has the lock of the home
        assert "t: 60 events deleted" in dsearch("feedback", "clear", "-c", "t", "--all")[1]


def with_rows(home: Path, keys: list[str]) -> int:
    """Add a row that was judged, then one of the query memory for each key; the operation of the first."""
    with SearchEngine(home, encoder=HashingEncoder) as engine:
        collection = engine.create("rows")
        collection.ingest([Document("d1", "tint")])
        state = HashingEncoder().encode_queries(["colour"])[0]
        judged = collection.remembered.add([MemoryRow("colour", state, {1: 1.0})])
        for key in keys:
            collection.remembered.add([MemoryRow("", state, {1: 1.0}, "clicks", key)])
        collection.add_model(Head(collection.store.dimension), {"feedback": {"clicks": 3}})
    return judged


def rows_of(home: Path) -> list[tuple[str, str]]:
    with SearchEngine(home, readonly=True, encoder=HashingEncoder) as engine:
        return [(row.source, row.key) for row in engine.collection("rows").remembered.rows()]


def test_clearing_names_what_was_learned_and_how_rows_are_taken_back(home: Path, dsearch: Run) -> None:
    judged = with_rows(home, ["k2", "k1", "client:ben", "k1"])
    clear = ("feedback", "clear", "-c", "rows")
    lines = dsearch(*clear, "--key", "k1")[1].splitlines()
    assert lines[0] == "rows: 0 events deleted"
    assert lines[1].startswith("2 rows of the query memory came from such events")
    assert f"dsearch rollback --rows {judged + 1} -c rows" in lines[1]
    assert lines[2].startswith("versions trained from feedback stay: v1; dsearch promote VERSION -c rows")
    assert "4 rows of the query memory may have come" in dsearch(*clear, "--older-than", "9")[1]
    assert "2 rows of the query memory may" in dsearch(*clear, "--key", "k1", "--client", "ben")[1]
    told = json.loads(dsearch(*clear, "--client", "ben", "--json")[1])
    assert told == {"deleted": 0, "rows_left": 1, "rows_after": judged + 2, "versions_left": ["v1"]}
    assert len(rows_of(home)) == 5
    assert dsearch("rollback", "--rows", judged + 1, "-c", "rows")[0] == 0
    assert rows_of(home) == [("judgements", ""), ("clicks", "k2")]
    told = json.loads(dsearch(*clear, "--key", "k1", "--json")[1])
    assert told == {"deleted": 0, "rows_left": 0, "rows_after": None, "versions_left": ["v1"]}


def test_what_is_older_is_counted_in_days(home: Path, dsearch: Run) -> None:
    store = FeedbackStore(home / "t")
    for hours in (1, 23, 25, 49):
        received = time.time() - 3600 * hours
        page = Impression(f"q{hours}", "tint", received)
        store.record(
            [page], [Event(f"e{hours}", f"q{hours}", "k", "c", "click", "d1", 1, received, received)]
        )
    assert "t: 1 event deleted" in dsearch("feedback", "clear", "-c", "t", "--older-than", "2")[1]
    assert "t: 1 event deleted" in dsearch("feedback", "clear", "-c", "t", "--older-than", "1")[1]
    assert FeedbackStore(home / "t").stats()["events"] == 2
    assert "t: 2 events deleted" in dsearch("feedback", "clear", "-c", "t", "--older-than", "0")[1]
