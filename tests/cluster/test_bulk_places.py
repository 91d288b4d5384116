"""Names that workers of a cluster get mean the same in any folder."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsearch.cluster.bulk import encode_on_cluster
from dsearch.engine import SearchEngine
from dsearch.errors import InvalidRequest
from dsearch.types import Document


def test_workers_open_the_home_wherever_they_start(
    engine_at_home: SearchEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: list[Any] = []
    asked: dict[str, Any] = {}

    class Blocks:
        def map_batches(self, _: Any, *, fn_constructor_args: Any, **options: Any) -> Blocks:
            given.append(fn_constructor_args)
            asked.update(options)
            return self

        def iter_rows(self) -> list[Any]:
            return []

    class DataContext:
        @staticmethod
        def get_current() -> DataContext:
            return DataContext()

    def from_items(items: list[Any], *, override_num_blocks: int) -> Blocks:
        asked["blocks"] = len(items), override_num_blocks
        return Blocks()

    data: Any = ModuleType("ray.data")
    data.DataContext, data.from_items = DataContext, from_items
    data.ActorPoolStrategy = lambda *, size: size
    ray: Any = ModuleType("ray")
    ray.data = data
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", data)
    store = engine_at_home.create("papers").store
    store.upsert([Document("d", "a text")])
    assert encode_on_cluster(store, encoder={}) == 0
    ((home, name, _, _),) = given
    assert (Path(home), name) == (tmp_path / "home", "papers")
    store.upsert([Document(f"d{number}", "a text") for number in range(4)])
    own: dict[str, Any] = {"encoder": {"encoder": "some/model", "dtype": "int8"}, "threads": 5}
    assert encode_on_cluster(store, **own, workers=3, num_cpus=0.25, block=1) == 0
    assert given[-1][2:] == (own["encoder"], own["threads"])
    assert (asked["blocks"], asked["compute"], asked["num_cpus"]) == ((5, 5), 3, 0.25)
    encode_on_cluster(store, **own, workers=4, block=2)
    assert (asked["blocks"], asked["compute"]) == ((3, 3), 3)  # no worker without a block


@pytest.fixture
def engine_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from support.tiny_encoder import write_tiny_encoder

    from dsearch.encoder import Encoder

    monkeypatch.chdir(tmp_path)
    encoder = Encoder.load(str(write_tiny_encoder(tmp_path / "encoder")))
    with SearchEngine("home", encoder=lambda: encoder) as engine:
        yield engine


@pytest.mark.parametrize("name", ["workers", "threads", "block"])
@pytest.mark.parametrize("number", [0, -1])
def test_there_is_one_of_each_at_least(name: str, number: int) -> None:
    """Refused before a cluster is asked for anything."""
    store: Any = None
    own: Any = {name: number}
    with pytest.raises(InvalidRequest, match=f"^{name}={number}; use 1 or more$"):
        encode_on_cluster(store, encoder={"encoder": "some/model"}, **own)
