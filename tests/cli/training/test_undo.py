"""One way back in every output, and it leads to the version that answered before."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from support.cli.terminal import Terminal

from dsearch.engine import Collection
from dsearch.engine.models.files import undo_command
from dsearch.training import Registration

README = Path(__file__).parents[3] / "README.md"


def live(dsearch: Terminal) -> str:
    return str(json.loads(dsearch("collections", "--json")[1])[0]["model"])


def undo(dsearch: Terminal, out: str) -> None:
    """Run the one command that an output names as the way back."""
    (command,) = re.findall(r"Undo: dsearch (.*)", out)
    assert len(re.findall(r"dsearch (?:rollback|promote)", out)) == 1
    assert dsearch(*shlex.split(command))[0] == 0


def test_undo_one_way_back_leads_to_what_answered_before(dsearch: Terminal, beir: Path) -> None:
    """The second training starts from v0 too, and takes the place of v1."""
    assert dsearch("index", beir, "-c", "papers")[0] == 0
    train = ("train", "-c", "papers", "--data", beir, "--accept", "--no-memory", "--epochs", "1")
    for before, version in (("v0", "v1"), ("v1", "v2")):
        code, out, err = dsearch(*train)
        assert (code, live(dsearch)) == (0, version), err
        if version == "v2":
            undo(dsearch, out)
            assert live(dsearch) == before


def test_undo_of_remembered_queries_as_readme_gives_it(dsearch: Terminal, beir: Path) -> None:
    assert dsearch("index", beir, "-c", "papers")[0] == 0
    (line,) = re.findall(r"`dsearch (remember [^`]*)`", README.read_text(encoding="utf-8"))
    query = ("search", "some other words", "-c", "papers", "--json")
    before = json.loads(dsearch(*query)[1])["hits"]
    given = [{"QUERY": "some other words", "ID": "d7"}.get(word, word) for word in shlex.split(line)]
    for _ in range(2):
        code, out, err = dsearch(*given, "-c", "papers")
        assert code == 0, err
        assert json.loads(dsearch(*query)[1])["hits"][0]["id"] == "d7"
        undo(dsearch, out)
        assert json.loads(dsearch(*query)[1])["hits"] == before


def test_undo_names_a_rollback_only_where_it_leads_to_the_version_before(collection: Collection) -> None:
    head, store = collection.head("v0"), collection.store
    first, second = (collection.add_model(head, {}, parent="v0") for _ in range(2))
    collection.promote(first)
    assert str(undo_command(store, "v0")) == f"dsearch rollback -c {store.name}"
    collection.promote(second)  # as a second stage behind a trained head
    assert str(undo_command(store, "v0")) == f"dsearch promote v0 -c {store.name}"
    assert str(undo_command(store, first)) == f"dsearch rollback -c {store.name}"
    collection.promote(first)  # gone back to: a rollback would go on to v0
    assert str(undo_command(store, second)) == f"dsearch promote {second} -c {store.name}"


def test_undo_of_a_training_with_a_second_stage_goes_behind_both(collection: Collection) -> None:
    head = collection.head("v0")
    first, second = (collection.add_model(head, {}, parent="v0") for _ in range(2))
    collection.promote(first)
    collection.promote(second)
    registered = Registration(first, second, first, "it passed").in_place_of("v0", collection)
    assert (registered.previous, registered.undo) == ("v0", f"dsearch promote v0 -c {collection.name}")
    assert Registration(first, None, "v0", "kept").in_place_of("v0", collection).undo is None
