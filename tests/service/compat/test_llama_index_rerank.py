"""Cohere's reranker for LlamaIndex, of a real server; it needs cohere below 7, so an environment of its own.

python -m venv .venv/cohere-rerank
.venv/cohere-rerank/bin/pip install llama-index-postprocessor-cohere-rerank
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cohere
import pytest
from support.service.service_fakes import WordEncoder, documents, serving

from dsearch.engine import SearchEngine

PYTHON = Path(sys.prefix) / "cohere-rerank" / "bin" / "python"
TEXTS = ["attention query", "river stone lamp", "music"]
SCRIPT = """
import json, sys
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank

address, model, query, *texts = sys.argv[1:]
reranker = CohereRerank(api_key="none", base_url=address, model=model, top_n=2, max_retries=1)
nodes = [NodeWithScore(node=TextNode(text=text, id_=str(n)), score=0.0) for n, text in enumerate(texts)]
try:
    ranked = reranker.postprocess_nodes(nodes, query_str=query)
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
else:
    print(json.dumps([[int(one.node.node_id), one.score] for one in ranked]))
"""

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no environment with cohere below 7: {PYTHON.parents[1]}"
    ),
]


def test_nodes_are_ordered_as_by_the_route(tmp_path: Path) -> None:
    with SearchEngine(tmp_path / "home", encoder=WordEncoder) as engine:
        engine.create("papers").ingest(documents(10))

    def ranked(address: str, model: str, query: str) -> list[list[object]]:
        command = [str(PYTHON), "-c", SCRIPT, address, model, query, *TEXTS]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout.splitlines()[-1])

    with serving(tmp_path / "home") as (address, _):
        client = cohere.ClientV2("none", base_url=address)
        expected = client.rerank(model="papers", query="stone river", documents=TEXTS, top_n=2).results
        assert ranked(address, "papers", "stone river") == [
            [one.index, one.relevance_score] for one in expected
        ]
        assert expected[0].index == 1
        error, detail = ranked(address, "none", "stone river")
        assert error == "NotFoundError"
        assert "there are: papers" in str(detail)
