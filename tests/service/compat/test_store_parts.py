"""What vector stores and their files share: ids, names, passages, and how long an answer waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dsearch.errors import InvalidRequest
from dsearch.service.compat import store_parts
from dsearch.service.compat.store_parts import (
    Chunking,
    attach,
    chunks_of,
    file_of,
    name_of,
    require_chunks,
    require_names,
)
from dsearch.service.middleware import deadline
from dsearch.types import Document, Hit


def hit(metadata: dict[str, Any], title: str = "") -> Hit:
    return Hit(1, "d1", 0.5, 1.0, title, "text", metadata)


def info(passages: dict[str, Any] | None) -> Any:
    return SimpleNamespace(name="papers", passages=passages)


@pytest.mark.parametrize("own", [None, "file-1", {}, {"file": 7}])
def test_a_document_that_was_not_uploaded_is_its_own_file(own: Any) -> None:
    assert file_of(Document("d1", "x", metadata={"_upload": own})) == "d1"
    assert file_of(Document("d1", "x")) == "d1"
    assert file_of(Document("d1#2", "x", metadata={"_upload": {"file": "file-1"}})) == "file-1"


def test_an_uploaded_file_has_its_name_and_others_their_title_or_id() -> None:
    uploaded = {"_upload": {"file": "file-1"}, "name": "notes.md"}
    assert name_of(hit(uploaded, "T")) == "notes.md"
    assert name_of(hit({"_upload": {"file": "d1"}, "name": "notes.md"}, "T")) == "notes.md"
    assert name_of(hit({"_upload": {"file": "file-1"}, "name": 7}, "T")) == "T"
    assert name_of(hit({"name": "notes.md"}, "T")) == "T"
    assert name_of(hit({"name": "notes.md"})) == "d1"


def test_passages_are_told_and_only_the_own_ones_taken() -> None:
    own = info({"tokens": 64, "overlap": 8})
    static = {"max_chunk_size_tokens": 64, "chunk_overlap_tokens": 8}
    assert chunks_of(own) == {"type": "static", "static": static}
    assert chunks_of(info(None)) == {"type": "other"}

    def chunking(tokens: int, overlap: int) -> Chunking:
        numbers = {"max_chunk_size_tokens": tokens, "chunk_overlap_tokens": overlap}
        return Chunking.model_validate({"type": "static", "static": numbers})

    require_chunks(None, own)
    require_chunks(Chunking.model_validate({"type": "auto"}), own)
    require_chunks(chunking(64, 8), own)
    for other in (chunking(64, 7), chunking(63, 8)):
        with pytest.raises(InvalidRequest, match="'papers' are tokens=64, overlap=8; leave it out"):
            require_chunks(other, own)
    with pytest.raises(InvalidRequest, match="'papers' are not cut; leave it out"):
        require_chunks(chunking(64, 8), info(None))


@pytest.mark.parametrize("wrong", [{"type": "static"}, {"type": "auto", "static": {}}])
def test_passages_have_numbers_with_type_static_alone(wrong: dict[str, Any]) -> None:
    if "static" in wrong:
        wrong["static"] = {"max_chunk_size_tokens": 1, "chunk_overlap_tokens": 0}
    with pytest.raises(ValueError, match=f"chunking_strategy of type {wrong['type']}; give `static` with"):
        Chunking.model_validate(wrong)


def test_an_attribute_may_not_have_the_name_of_the_service() -> None:
    require_names({"upload": 1})
    with pytest.raises(InvalidRequest, match=r"^attributes\._upload: the service's own name; use another"):
        require_names({"_upload": 1})


class _Service:
    """Attaches nothing, and remembers how long it was to wait."""

    def __init__(self) -> None:
        self.uploads = SimpleNamespace(get=lambda file: file)
        self.attachments = self
        self.patience_s: list[float] = []
        self.ids: list[str] = []

    async def read(self, work: Any) -> Any:
        return work()

    def start(self, collection: str, files: Any, id: str) -> str:
        self.ids.append(id)
        return f"{collection}/{len(files)}"

    async def settle(self, batch: Any, patience_s: float) -> None:
        self.patience_s.append(patience_s)


@pytest.mark.parametrize(
    ("left_s", "waits_s"), [(None, 20.0), (60.0, 20.0), (11.0, 10.0), (0.5, 0.0), (-3.0, 0.0)]
)
def test_an_answer_waits_until_a_second_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch, left_s: float | None, waits_s: float
) -> None:
    service = _Service()

    async def attached() -> None:
        now = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        monkeypatch.setattr(deadline, "present", lambda: None if left_s is None else now + left_s)
        batch = await attach(service, info(None), [("a", {}), ("b", {})])  # type: ignore[arg-type]
        assert batch == "papers/2"

    asyncio.run(attached())
    assert service.patience_s == [pytest.approx(waits_s)]
    assert service.ids[0].startswith("vsfb_")
    assert store_parts.PATIENCE_S == 20.0


def test_nothing_is_attached_of_a_request_with_a_wrong_attribute() -> None:
    service = _Service()
    with pytest.raises(InvalidRequest):
        asyncio.run(attach(service, info(None), [("a", {}), ("b", {"_upload": 1})]))  # type: ignore[arg-type]
    assert service.ids == []
