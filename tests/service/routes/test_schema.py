"""Requests made from the OpenAPI document itself (schemathesis), fitting it and not: each gets an answer.

The suite makes some five hundred, `--nightly` 20,000; `SCHEMA_CASES` in the environment sets another number.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st
from support.late import late
from support.service.problems import require_an_answer
from support.service.service_fakes import WordEncoder, documents, serving
from support.sizes import by_size

from dsearch.engine import SearchEngine
from dsearch.service import create_app

schemathesis = late("schemathesis")

pytestmark = pytest.mark.server

CASES = int(os.environ.get("SCHEMA_CASES", by_size(500, 20_000)))
ROUNDS = 2 if CASES >= 20_000 else 1
LEAVES_COLLECTIONS = {"PUT /v1/collections/{collection}", "DELETE /v1/collections/{collection}"}
DELIBERATE = (503, 507)


def _document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home, SearchEngine(Path(home)) as engine:
        return create_app(engine).openapi()


DOCUMENT = _document()
OPERATIONS = [f"{method.upper()} {path}" for path, methods in DOCUMENT["paths"].items() for method in methods]


@cache
def operations() -> dict[str, Any]:
    """The operations of the document, by method and path."""

    @schemathesis.serializer("application/x-safetensors")
    def as_bytes(_: Any, value: Any) -> bytes:
        return value if isinstance(value, bytes) else str(value).encode(errors="replace")

    schema = schemathesis.openapi.from_dict(DOCUMENT)
    by_label = {found.ok().label: found.ok() for found in schema.get_all_operations()}
    assert list(by_label) == OPERATIONS
    return by_label


@dataclass
class Served:
    """A server in another process, and what it held after each operation, in bytes."""

    client: httpx2.Client
    process: int
    cases: int = 0
    resident: list[int] = field(default_factory=list)

    def look(self) -> None:
        """Note its memory (Linux)."""
        with contextlib.suppress(OSError):
            pages = Path(f"/proc/{self.process}/statm").read_text().split()[1]
            self.resident.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose tasks end at once: this is about what is asked, not about what it does."""
    home = tmp_path_factory.mktemp("schema") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(60))
    with (
        serving(home, cold=True, no_tasks=True) as (origin, process),
        httpx2.Client(base_url=origin, timeout=60) as client,
    ):
        yield Served(client, process.pid)


def _as_text(part: Any) -> Any:
    """A part of a form, with a number that stands for its content as text, as `requests` sends it."""
    if isinstance(part, tuple):
        return tuple(_as_text(one) if place == 1 else one for place, one in enumerate(part))
    return str(part) if isinstance(part, int | float) else part


@pytest.mark.parametrize("label", OPERATIONS)
@pytest.mark.parametrize("number", range(ROUNDS))  # the outer loop: all operations, then again
def test_every_request_of_the_document_gets_an_answer(served: Served, number: int, label: str) -> None:
    operation = operations()[label]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @seed(number)
    @settings(
        max_examples=max(1, CASES // ROUNDS // len(OPERATIONS)),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, here=st.booleans())
    def answered(case: Any, here: bool) -> None:
        if here and "collection" in (case.path_parameters or {}) and label not in LEAVES_COLLECTIONS:
            case.path_parameters["collection"] = "papers"
        sent = case.as_transport_kwargs(base_url=str(served.client.base_url))
        if "data" in sent:  # as `requests` calls it
            sent["content"] = sent.pop("data")
        if sent.get("files"):
            sent["files"] = [(name, _as_text(part)) for name, part in sent["files"]]
        served.cases += 1
        try:
            given = served.client.request(
                **{name: value for name, value in sent.items() if name != "cookies"}
            )
        except httpx2.InvalidURL:
            reject()  # the client does not send it
        if given.status_code not in DELIBERATE:
            require_an_answer(given)

    answered()
    served.look()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_the_server_is_still_there_and_holds_no_more(served: Served) -> None:
    """After all operations everything was loaded once: the second round may add 5 % (asked of 20,000)."""
    assert served.client.get("/readyz").status_code == 200
    first, end = served.resident[len(OPERATIONS) - 1], served.resident[-1]
    print(f"{served.cases} cases, {first / 2**20:.0f} MiB after a round, {end / 2**20:.0f} MiB at the end")
    assert end < 1.05 * first
