"""The same question to a collection in Python, by command line and over HTTP; the answers as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient
from support.cli.terminal import Terminal
from support.fakes import HashingEncoder

from dsearch.encoder import Encoder
from dsearch.engine import Collection, GradientQuery, attention_parts
from dsearch.service.searching import attended_json, predicted_json

DOORS = ["python", "command line", "http"]


@dataclass(frozen=True)
class Doors:
    """Three ways into one collection.

    Attributes:
        collection: in Python.
        client: over HTTP.
        terminal: by command line.
    """

    collection: Collection
    client: TestClient
    terminal: Terminal

    def attend(self, door: str, queries: list[str], **options: Any) -> dict[str, Any]:
        """Attention by the door "python", "command line" or "http"."""
        if door == "python":
            given = options.copy()
            own = {name: given.pop(name) for name in ("model", "filter", "ids") if name in given}
            asked = GradientQuery(texts=queries or None, options=given, **own)  # type: ignore[arg-type]
            return _plain(attended_json(attention_parts(self.collection, asked)))
        return self._elsewhere(door, "attend", queries, options)

    def predict(
        self, door: str, queries: list[str], *, field: str, limit: int = 10, **options: Any
    ) -> dict[str, Any]:
        """Prediction of a field, with the `limit` documents of largest weight."""
        if door == "python":
            ids = options.pop("ids", None)
            asked: Any = queries if ids is None else self.collection.states_of(ids)
            return _plain(
                predicted_json(self.collection.predict(asked, field=field, evidence=limit, **options))
            )
        shown = {"limit": limit} if door == "command line" else {"evidence": limit}
        return self._elsewhere(door, "predict", queries, {"field": field, **shown, **options})

    def _elsewhere(
        self, door: str, route: str, queries: list[str], options: dict[str, Any]
    ) -> dict[str, Any]:
        if door == "http":
            answered = self.client.post(
                f"/v1/collections/{self.collection.name}/{route}",
                json={**({"queries": queries} if queries else {}), **options},
            )
            assert answered.status_code == 200, answered.text
            return answered.json()
        flags: list[str] = []
        for name, value in options.items():
            flag = "--id" if name == "ids" else f"--{name.replace('_', '-')}"
            if isinstance(value, list):
                flags += [part for one in value for part in (flag, one)]
                continue
            flags += [flag] if value is True else [flag, str(value)]
        code, out, err = self.terminal(route, *queries, "-c", self.collection.name, "--json", *flags)
        assert code == 0, err
        return json.loads(out)


def in_three_ways(
    collection: Collection,
    client: TestClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Doors:
    """Doors to a collection of `HashingEncoder`."""
    monkeypatch.setattr(Encoder, "load", lambda *_, **__: HashingEncoder())
    return Doors(collection, client, Terminal(collection.store.path.parent, capsys, monkeypatch))


def _plain(answer: Any) -> dict[str, Any]:
    return json.loads(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))
