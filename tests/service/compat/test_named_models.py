"""Names of models in requests of other APIs: collection, version, side."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from dsearch.engine import Collection
from dsearch.errors import InvalidRequest
from dsearch.service.compat import NamedModel


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("papers", NamedModel("papers")),
        ("papers@v3", NamedModel("papers", "v3")),
        ("papers:query", NamedModel("papers", None, "query")),
        ("papers@v123456789:document", NamedModel("papers", "v123456789", "document")),
    ],
)
def test_a_name_is_read_and_written_the_same(name: str, model: NamedModel) -> None:
    assert NamedModel.of(name) == model
    assert str(model) == name


@pytest.mark.parametrize(
    "name", ["papers@3", "papers@v1234567890", "papers:both", "papers:query@v3", "a b", "@v3", "papers@v3 "]
)
def test_what_is_no_name_is_repeated_with_what_is(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        NamedModel.of(name)
    assert str(refused.value) == (
        f"model={name!r}; use COLLECTION, COLLECTION@VERSION or COLLECTION@VERSION:query, such as papers@v3 "
        "(GET /v1/models)"
    )


def test_a_damaged_collection_hides_no_model_of_another(client: TestClient, papers: Collection) -> None:
    broken = papers.store.path.with_name("broken")
    broken.mkdir()
    (broken / "documents.db").write_bytes(b"no database")
    listed = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["papers", "papers@v0"]
