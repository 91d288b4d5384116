"""Requests made from the OpenAPI document itself (schemathesis), fitting it and not: each gets an answer.

`SCHEMA_CASES=20000` in the environment makes as many; the suite makes about a thousand.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from service_fakes import WordEncoder, documents
from starlette.testclient import TestClient
from test_service_fuzz import require_an_answer

from dsearch.engine import SearchEngine
from dsearch.errors import Cancelled
from dsearch.service import create_app, tasks

CASES = int(os.environ.get("SCHEMA_CASES", "1000"))
LEAVES_COLLECTIONS = {"PUT /v1/collections/{collection}", "DELETE /v1/collections/{collection}"}
DELIBERATE = (503, 507)


def _operations() -> list[Any]:
    with tempfile.TemporaryDirectory() as home, SearchEngine(Path(home)) as engine:
        schema = schemathesis.openapi.from_dict(create_app(engine).openapi())
    return [found.ok() for found in schema.get_all_operations()]


@schemathesis.serializer("application/x-safetensors")
def _bytes(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


OPERATIONS = _operations()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client of a service whose tasks end at once: this is about what is asked, not about what it does."""

    def given_up(*_: Any, **__: Any) -> None:
        raise Cancelled("not in this test")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tasks, "run_spawned", given_up)
        home = tmp_path_factory.mktemp("schema") / "home"
        with SearchEngine(home, encoder=WordEncoder) as engine:
            engine.create("papers").ingest(documents(60))
            app = create_app(engine, query_timeout_s=30)
            with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
                yield client


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_every_request_of_the_document_gets_an_answer(served: TestClient, operation: Any) -> None:
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @seed(0)
    @settings(
        max_examples=max(1, CASES // len(OPERATIONS)),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, here=st.booleans())
    def answered(case: Any, here: bool) -> None:
        if (
            here
            and "collection" in (case.path_parameters or {})
            and operation.label not in LEAVES_COLLECTIONS
        ):
            case.path_parameters["collection"] = "papers"
        sent = case.as_transport_kwargs(base_url="http://127.0.0.1")
        if "data" in sent:  # as `requests` calls it
            sent["content"] = sent.pop("data")
        try:
            given = served.request(**{name: value for name, value in sent.items() if name != "cookies"})
        except httpx2.InvalidURL:
            reject()  # the client does not send it
        if given.status_code not in DELIBERATE:
            require_an_answer(given)

    answered()
