#!/usr/bin/env python3
"""A recommender as cross-attention: the item in question is the query, what somebody read keys and values.

    python scripts/examples/recommender.py

How much of a reader's history speaks for an item depends on the item: of somebody who reads about bread and
about trains, bread speaks for a cookbook and trains for a timetable. One pooled profile could not do that.

`scripts/bench/recommender.py` measures its recall on judged queries as readers.
"""

from __future__ import annotations

import torch

import dsearch
from dsearch.attention import attend
from dsearch.encoder import DEFAULT_ENCODER

HISTORY = [
    "baking sourdough at home",
    "yeast and how it rises",
    "night trains through Europe",
    "steam engines",
]
ITEMS = ["a cookbook of rye breads", "a timetable of alpine railways", "an introduction to tax law"]
TEMPERATURE = 0.1


def main() -> None:
    encoder = dsearch.Encoder.load(DEFAULT_ENCODER)
    history = torch.as_tensor(encoder.encode_documents(HISTORY))
    items = torch.as_tensor(encoder.encode_queries(ITEMS))
    found = attend(items, history, history, score="dot", temperature=TEMPERATURE)
    interest = (found.context * items).sum(-1)
    for at in interest.argsort(descending=True).tolist():
        because = HISTORY[int(found.weights[at].argmax())]
        print(f"{interest[at]:.2f}  {ITEMS[at]}  (because of: {because})")


if __name__ == "__main__":
    main()

# 0.46  a timetable of alpine railways  (because of: night trains through Europe)
# 0.29  a cookbook of rye breads  (because of: yeast and how it rises)
# 0.10  an introduction to tax law  (because of: baking sourdough at home)
