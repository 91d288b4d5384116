"""An engine that was closed writes nothing: another process may hold its home by now."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from support.service.service_fakes import WordEncoder, documents

import dsearch
from dsearch.engine import SearchEngine
from dsearch.errors import Conflict, Unavailable


def test_a_closed_engine_opens_nothing_for_writing(tmp_path: Path) -> None:
    engine = SearchEngine(tmp_path / "home", encoder=WordEncoder)
    papers = engine.create("papers")
    papers.ingest(documents(12))
    layer = dsearch.open_layer(engine, "papers", mode="dense")
    out = layer(layer.query_states(["river stone"]).requires_grad_())
    thread = threading.Thread(target=engine.close)  # by a thread that did not open it
    thread.start()
    thread.join()
    with SearchEngine(tmp_path / "home", encoder=WordEncoder):
        calls: list[Any] = [
            lambda: engine.collection("papers"),
            lambda: engine.create("more"),
            lambda: engine.drop("papers"),
            lambda: layer.refresh(),
            lambda: dsearch.open_layer(engine, "papers"),
            lambda: dsearch.save_model(papers, layer),
            lambda: layer(layer.query_states(["river"]), values="i"),
        ]
        for call in calls:
            with pytest.raises(Unavailable, match="was closed; open it again"):
                call()
        out.context.sum().backward()  # a layer keeps the documents that it has
    again = layer(layer.query_states(["river stone"]))
    assert again.context.allclose(out.context)
    engine.close()
    with SearchEngine(tmp_path / "home", encoder=WordEncoder, readonly=True) as reading:
        assert reading.collection("papers").search("river").hits


@pytest.mark.parametrize("opened", ["engine", "folder"])
@pytest.mark.parametrize("changed", ["alias", "anew"])
def test_a_layer_takes_no_rows_of_another_collection_for_its_own(
    tmp_path: Path, opened: str, changed: str
) -> None:
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as engine:
        for name in ("first", "second"):
            engine.create(name).ingest(documents(6))
        engine.set_alias("live", "first")
        layer = dsearch.open_layer(engine if opened == "engine" else engine.home.path, "live", mode="dense")
        states = torch.ones(1, 32)
        out = layer(states)
        if changed == "alias":
            engine.set_alias("live", "second")
        else:
            engine.drop_alias("live")
            engine.drop("first")
            engine.create("live").ingest(documents(6))
        calls: list[Any] = [
            lambda: out.ids,
            lambda: layer.ids(out.positions),
            lambda: layer(states, with_texts=True),
            lambda: layer(states, values="i"),
            lambda: layer.refresh(),
        ]
        for call in calls:
            with pytest.raises(Conflict, match="another one than when this layer was opened"):
                call()
