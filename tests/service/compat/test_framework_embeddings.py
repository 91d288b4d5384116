"""`/v1/embeddings` by the OpenAI classes of LangChain and LlamaIndex, offline, of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr
from support.late import late
from support.service.service_fakes import DIMENSION, WordEncoder, documents, serving

from dsearch.engine import SearchEngine

openai = late("openai")
langchain_openai = late("langchain_openai")
llama_index = late("llama_index.embeddings.openai")

pytestmark = pytest.mark.server

TEXTS = ["attention query", "river stone lamp", "music"]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    pytest.importorskip("langchain_openai")
    pytest.importorskip("llama_index.embeddings.openai")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home: Path = tmp_path_factory.mktemp("frameworks") / "home"
    with SearchEngine(home, encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(10))
    with serving(home) as (origin, _):
        yield f"{origin}/v1"


@pytest.fixture(scope="module")
def expected(address: str) -> np.ndarray:
    with openai.OpenAI(base_url=address, api_key="none") as client:
        answer = client.embeddings.create(model="papers", input=TEXTS)
    return np.array([one.embedding for one in answer.data])


def test_langchain_embeds_documents_and_queries(address: str, expected: np.ndarray) -> None:
    """Without its check of lengths, which downloads OpenAI's own vocabulary."""
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="papers",
        base_url=address,
        api_key=SecretStr("none"),
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    np.testing.assert_allclose(embeddings.embed_documents(TEXTS), expected, atol=1e-6)
    assert np.shape(embeddings.embed_query("music")) == (DIMENSION,)
    np.testing.assert_allclose(asyncio.run(embeddings.aembed_documents(TEXTS)), expected, atol=1e-6)
    refused = embeddings.model_copy(update={"model": "none"})
    with pytest.raises(openai.NotFoundError, match="none"):
        refused.embed_query("music")


def test_llama_index_embeds_texts_and_queries(address: str, expected: np.ndarray) -> None:
    embeddings = llama_index.OpenAIEmbedding(
        model_name="papers", api_base=address, api_key="none", max_retries=0
    )
    np.testing.assert_allclose(embeddings.get_text_embedding_batch(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(embeddings.get_query_embedding("music"), expected[2], atol=1e-6)
    refused = llama_index.OpenAIEmbedding(model_name="none", api_base=address, api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="none"):
        refused.get_text_embedding("music")
