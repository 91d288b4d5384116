"""Rewards of documents that were drawn, asked of a program on this machine: a black box behind an address.

    POST {"queries": [text, …], "ids": [[id, …], …]}   →   {"rewards": [[number, …], …]}

One request a training step. Only addresses of this machine are asked (`dsearch.jobs`), directly, and
redirections are not followed.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from dsearch.errors import InvalidRequest, Unavailable
from dsearch.jobs import REWARD_URL

_TIMEOUT_S = 60.0
_MAX_BYTES = 16 * 1024 * 1024

NameRows = Callable[[Int64[np.ndarray, "queries samples"]], list[list[str]]]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is then an error."""
        return


class RewardCallback:
    """Rewards by an address.

    Args:
        url: of a program on this machine, http.
        name_rows: gives the ids at positions.

    Raises:
        InvalidRequest: an address of another machine.
    """

    def __init__(self, url: str, name_rows: NameRows):
        if re.fullmatch(REWARD_URL, url) is None or not url.isprintable():
            raise InvalidRequest(
                f"reward_url={url[:200]!r}; use an address on this machine, such as "
                "http://127.0.0.1:9000/rewards"
            )
        self._url, self._name_rows = url, name_rows
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def __call__(
        self, texts: Sequence[str], draws: Int64[np.ndarray, "queries samples"]
    ) -> Float32[np.ndarray, "queries samples"]:
        """Ask what showing these documents to these queries was worth.

        Raises:
            Unavailable: nobody answers, or with an error.
            InvalidRequest: an answer that is not a finite number for each document.
        """
        body = json.dumps({"queries": list(texts), "ids": self._name_rows(draws)}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                content = answer.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"reward_url={self._url}: {str(error).strip()}; is the program that rewards running?"
            ) from error
        try:
            rewards = np.array(json.loads(content)["rewards"], np.float32)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            rewards = np.zeros(0, np.float32)
        if rewards.shape != draws.shape or not np.isfinite(rewards).all():
            raise InvalidRequest(
                f"reward_url={self._url} gave rewards of shape {list(rewards.shape)}; answer "
                f'{{"rewards": …}} with {list(draws.shape)} finite numbers, one for each id'
            )
        return rewards
