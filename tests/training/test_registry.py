"""The version that a training starts from, and which of its results answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.training import Candidate, registry
from dsearch.training.registry import Registration, starting_version


def collection(live: str, **records: tuple[dict[str, Any], str | None]) -> Any:
    """A collection with these versions: record and parent of each."""
    versions = {"v0": ({}, None), **records}

    def model(version: str) -> Any:
        record, parent = versions[version]
        return SimpleNamespace(version=version, record=record, parent=parent)

    return SimpleNamespace(live_model=live, store=SimpleNamespace(model=model))


TUNE: tuple[dict[str, Any], str] = ({"scope": "tune"}, "v0")


@pytest.mark.parametrize(
    ("live", "versions", "start"),
    [
        ("v0", {}, "v0"),
        ("v1", {"v1": TUNE}, "v1"),
        ("v1", {"v1": ({"scope": "head"}, "v0")}, "v0"),
        ("v1", {"v1": ({"scope": "memory"}, "v0")}, "v0"),
        ("v2", {"v1": TUNE, "v2": ({"scope": "second stage"}, "v1")}, "v1"),
        ("v2", {"v1": ({"scope": "head"}, "v0"), "v2": ({"scope": "second stage"}, "v1")}, "v0"),
        ("v2", {"v1": TUNE, "v2": ({"scope": "values"}, "v1")}, "v1"),
        ("v3", {"v1": TUNE, "v2": ({"scope": "values"}, "v1"), "v3": ({"scope": "remember"}, "v2")}, "v1"),
        ("v1", {"v1": ({"scope": "second stage"}, None)}, "v0"),
    ],
)
def test_a_training_starts_from_a_tuned_search_and_from_no_trained_head(
    live: str, versions: dict[str, Any], start: str
) -> None:
    """A trained head has learned from the queries that would be held out; what stands before it counts."""
    assert starting_version(collection(live, **versions)) == start


def test_queries_inserted_since_do_not_change_the_start() -> None:
    from dsearch.training.memory import REMEMBER

    inserted: Any = ({"scope": REMEMBER}, "v1")
    assert starting_version(collection("v2", v1=TUNE, v2=inserted)) == "v1"
    behind: Any = ({"scope": "second stage"}, "v1")
    after: Any = ({"scope": REMEMBER}, "v2")
    assert starting_version(collection("v3", v1=TUNE, v2=behind, v3=after)) == "v1"
    assert starting_version(collection("v2", v1=({}, "v0"), v2=({"scope": REMEMBER}, None))) == "v0"


@pytest.mark.parametrize(
    ("encoder", "kept"),
    [(None, True), (object(), False)],
)
def test_queries_inserted_meanwhile_are_kept_where_the_encoder_is_theirs(
    monkeypatch: pytest.MonkeyPatch, encoder: Any, kept: bool
) -> None:
    monkeypatch.setattr(registry, "with_inserted", lambda head, memory: f"{head} with {memory}")
    monkeypatch.setattr(registry, "_promoted", lambda *_: None)
    monkeypatch.setattr(registry, "sentence_of", lambda *_: "")
    monkeypatch.setattr(registry, "undo_command", lambda store, previous: f"back to {previous}")
    written: list[tuple[str, str]] = []
    taken: Any = SimpleNamespace(
        live_model="v1",
        store=None,
        stored_head=lambda version: SimpleNamespace(memory=f"rows of {version}"),
        with_values_of=lambda version, head, record: (f"{head} valuing {version}", record),
        add_model=lambda head, record, **parts: written.append((head, record["verdict"])) or "v2",
    )
    head: Any = "head"
    tuned: Any = "tuned"
    searched = Candidate(head=tuned, record={"gate": {"verdict": "passed", "reason": "rose"}})
    about = {"gate": {"verdict": "refused", "reason": "fell"}}
    registry.register(taken, Candidate(head=head, record=about, encoder=encoder, tuned=searched))
    beside = " with rows of v1" if kept else ""
    assert written == [(f"head{beside} valuing v1", "fell"), (f"tuned{beside} valuing v1", "rose")]


@pytest.mark.parametrize(
    ("started", "scope", "parent", "present"),
    [
        ("v0", "remember", "v0", "v9"),
        ("v0", "remember", "v1", "v0"),
        ("v0", "head", "v0", "v0"),
        (None, "remember", "v0", None),
    ],
)
def test_a_memory_that_was_begun_behind_the_version_of_then_is_no_other_one(
    started: str | None, scope: str, parent: str, present: str | None
) -> None:
    """Behind another version it is one."""
    taken = collection("v9", v9=({"scope": scope}, parent))
    assert registry._present(taken, started) == present  # pyright: ignore[reportPrivateUsage]


def test_a_second_stage_has_the_query_encoder_of_what_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_promoted", lambda *_: None)
    monkeypatch.setattr(registry, "sentence_of", lambda *_: "")
    monkeypatch.setattr(registry, "undo_command", lambda store, previous: f"back to {previous}")
    written: list[dict[str, Any]] = []
    taken: Any = SimpleNamespace(
        live_model="v3",
        store=None,
        stored_head=lambda version: SimpleNamespace(reranking=lambda stage: f"{stage} behind {version}"),
        calibrations=SimpleNamespace(of=lambda _: None),
        encoder_change_of=lambda version: f"change of {version}",
        add_model=lambda head, record, **parts: written.append({"head": head, **parts}) or "v4",
    )
    stage: Any = "stage"
    first = Registration("v3", "v3", "v0", "rose", passed="v3", previous="v2")
    done = registry.register_second_stage(taken, stage, {"gate": {"reason": "rose too"}}, first)
    assert written == [{"head": "stage behind v3", "parent": "v3", "encoder": "change of v3"}]
    assert (done.version, done.live) == ("v3", "v4")
    assert (done.previous, done.undo) == ("v2", "back to v2")  # before the head that it follows


@pytest.mark.parametrize(
    ("passed", "promote", "accept", "live"),
    [
        (True, True, False, True),
        (True, False, False, False),
        (False, True, False, False),
        (False, False, True, True),
    ],
)
def test_what_passed_goes_live_if_it_may_and_what_is_accepted_whatever_was_said(
    monkeypatch: pytest.MonkeyPatch, passed: bool, promote: bool, accept: bool, live: bool
) -> None:
    monkeypatch.setattr(registry, "_promoted", lambda *_: None)
    monkeypatch.setattr(registry, "sentence_of", lambda *_: "")
    monkeypatch.setattr(registry.calls, "require_unjudged", lambda *_: None)
    monkeypatch.setattr(registry, "undo_command", lambda store, previous: f"back to {previous}")
    taken = collection("v0", v1=({}, "v0"))
    taken.add_to_record = lambda *_: None
    gate = {"verdict": "passed" if passed else "refused", "reason": ""}
    done = registry.register_verdict(taken, "v1", {"gate": gate}, promote=promote, accept=accept)
    assert (done.live, done.passed) == (("v1", "v1") if live else (None, None))


def test_a_registration_names_what_answers_else_what_was_trained() -> None:
    kept = Registration("v2", None, "v1", "too few", "It stays.")
    assert kept.model == "v2"
    assert kept.to_dict() == {
        "model": "v2",
        "live": False,
        "trained": "v2",
        "parent": "v1",
        "reason": "too few",
        "verdict": "It stays.",
        "previous": None,
        "undo": None,
        "passed": None,
        "outdated_by": None,
    }
    tuned = Registration("v2", "v3", "v1", "better")
    assert (tuned.model, tuned.to_dict()["live"], tuned.to_dict()["trained"]) == ("v3", True, "v2")
