"""A toy agent in reinforcement learning asks /retrieve, reads one document and sends feedback on it.

Codes of a machine say nothing about the pages that explain them, so only experience tells. The policy learns
which place of an answer to read (REINFORCE), dsearch learns between the rounds from what was rewarded: forty
episodes a round, one reader, 8 pages. "First document" is the success of always reading the first one.

round 1: agent 0.12, first document 0.07
round 5: agent 0.82, first document 0.88
"""

from __future__ import annotations

import json
import math
import random
import urllib.request
from tempfile import TemporaryDirectory
from typing import Any

from server import served

import dsearch
from dsearch import Document

PARTS = "paper toner drum roller scanner cable fan battery"
ASKED = ["what is {}", "{} is on the display", "how do I get rid of {}", "{} again", "the machine says {}"]


def post(client: dsearch.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{client.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def episodes(
    client: dsearch.Client, codes: dict[str, str], places: list[float], draw: random.Random
) -> list[float]:
    """One round: the share of successes of the agent, and of always reading the first document."""
    successes, firsts, questions = 0, 0, [(form.format(code), code) for form in ASKED for code in codes]
    for question, code in questions:
        answer = post(client, "/retrieve", {"queries": [question], "topk": len(places)})
        ids = [document["id"] for document in answer["result"][0]]
        shares = [math.exp(logit) for logit in places]
        place = draw.choices(range(len(places)), shares)[0]  # the policy
        reward = float(ids[place] == codes[code])
        for other in range(len(places)):  # REINFORCE
            places[other] += reward * ((other == place) - shares[other] / sum(shares)) * 0.3
        action = "thumbs_up" if reward else "thumbs_down"
        event = {"action_name": action, "object_id": ids[place], "query_id": answer["query_ids"][0]}
        client.feedback("manual", [event])
        successes, firsts = successes + reward, firsts + (ids[0] == codes[code])
    return [successes / len(questions), firsts / len(questions)]


def main(encoder: Any = None, rounds: int = 5) -> list[list[float]]:
    draw, places = random.Random(0), [0.0] * 8
    pages = [Document(part, f"How to change or clean the {part}.", title=part) for part in PARTS.split()]
    codes = {
        f"E{number}": page.id for number, page in zip(draw.sample(range(100, 999), 8), pages, strict=True)
    }
    history: list[list[float]] = []
    with TemporaryDirectory() as home, dsearch.open(home, encoder=encoder) as engine:
        engine.create_collection("manual")
        engine.upsert("manual", pages)
        with served(engine, "manual", http=True) as (client, *_):
            for number in range(rounds):
                history.append(episodes(client, codes, places, draw))
                print("round {}: agent {:.2f}, first document {:.2f}".format(number + 1, *history[-1]))
                own = client.own_judgements("manual")
                engine.train("manual", queries=own.queries, judgements=own.judgements, accept=True, seed=0)
    if history[-1][0] > history[0][0] + 0.3:
        print("the agent's success rose")
    return history


if __name__ == "__main__":
    main()
