#!/usr/bin/env python3
"""Route tickets by attention: the team of a new one is pooled from the teams of those like it.

    python scripts/examples/tickets.py

No classifier is trained. The tickets that were answered before are the memory; `predict` gives a distribution
over their teams and names the tickets that it comes from. A ticket added is a lesson learned.
"""

from __future__ import annotations

import tempfile

import dsearch
from dsearch import Document

ANSWERED = [
    ("I cannot log in since this morning", "accounts"),
    ("The password reset mail never arrives", "accounts"),
    ("Please change the e-mail address of my account", "accounts"),
    ("I was charged twice for March", "billing"),
    ("Can I have an invoice with our tax number?", "billing"),
    ("The refund has not reached my bank", "billing"),
    ("The parcel was left in the rain and is ruined", "shipping"),
    ("Tracking says delivered, but nothing is here", "shipping"),
    ("Can I have it sent to another country?", "shipping"),
]
NEW = ["my card was debited two times", "the courier never came", "two-factor code is not accepted"]


def main() -> None:
    with tempfile.TemporaryDirectory() as home, dsearch.SearchEngine(home) as engine:
        tickets = engine.create("tickets")
        tickets.ingest(
            Document(f"t{n}", text, metadata={"team": team}) for n, (text, team) in enumerate(ANSWERED)
        )
        predicted = tickets.predict(NEW, field="team", evidence=1, mode="dense")
        for text, one in zip(NEW, predicted.predictions, strict=True):
            assert one.labels is not None
            team, share = next(iter(one.labels.items()))
            print(f"{text!r}: {team} ({share:.0%}), as in {ANSWERED[int(one.evidence[0].id[1:])][0]!r}")


if __name__ == "__main__":
    main()

# 'my card was debited two times': billing (95%), as in 'I was charged twice for March'
# 'the courier never came': shipping (64%), as in 'Tracking says delivered, but nothing is here'
# 'two-factor code is not accepted': billing (65%), as in 'The refund has not reached my bank'
# The last is wrong: nothing like it was answered before. Add one such ticket, and it is right.
