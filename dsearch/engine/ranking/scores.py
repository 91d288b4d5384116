"""Scores of a collection by name.

An index ranks by the inner product q·k. Every other score re-scores the candidates that the inner product
proposed.

| name | score of query q and key k | own dial |
|---|---|---|
| `dot`, `general` | q·k; the head's W_K makes it bilinear | the head's temperature |
| `scaled_dot_product`, `cosine`, `additive` | as in `dsearch.attention` | the head's temperature |
| `gaussian`, `epanechnikov`, `boxcar` | log K(|q − k| / width) | `width`; temperature 1 |
| `exact_match` | 0 where q = k, else −∞ | none; temperature 1 |

A document at −∞ is no candidate, so a query without a match has no answer. Checks of a ranking's other
options and inputs stand here, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from dsearch.attention.arrays import Array, length, numbers_of, without_gradients
from dsearch.attention.retrieval.fixed_head import HeadFormulas
from dsearch.attention_options import KERNELS, POOLING_NAMES, SCORE_NAMES
from dsearch.errors import DimensionMismatch, InvalidRequest, amount
from dsearch.types import Mode

if TYPE_CHECKING:
    from dsearch.attention import Score

WITHOUT_TOKENS = (
    "stages=2, or highlight_by='meaning', by documents without tokens; leave it out, or add them: dsearch "
    "index -c COLLECTION --second-stage (a version of scope full has them if it was trained after that)"
)
INNER_PRODUCTS = ("dot", "general")
# An encoder gives one text slightly different vectors in different batches, so equality to the bit means
# nothing here: vectors are equal that differ by less than this share of the query's length.
EQUAL = 1e-3


class NamedScore:
    """A score of `dsearch.attention.SCORES` between the queries and keys of a collection.

    Args:
        name: one of `SCORES`.
        width: of a kernel, in units of the keys; 1 when None.

    Raises:
        InvalidRequest: an unknown name, a width that is not above 0, a width for a score that has none.
    """

    def __init__(self, name: str, width: float | None = None):
        if name not in SCORE_NAMES:
            from dsearch.attention.scores import SCORES  # one more may be registered

            if name not in SCORES:
                raise InvalidRequest(f"score={name!r}; use one of {', '.join(SCORES)}")
        if width is not None and name not in KERNELS:
            raise InvalidRequest(
                f"width={width} with score={name!r}; only {', '.join(KERNELS)} have a width, leave it out"
            )
        if width is not None and not 0 < width < math.inf:
            raise InvalidRequest(f"width={width}; use a number above 0, in units of the keys' length")
        self.name = name
        self.width = 1.0 if width is None else width

    @property
    def has_support(self) -> bool:
        """True if the score itself sets the scale of the attention, so that no temperature is needed."""
        return self.name in (*KERNELS, "exact_match")

    def __call__(
        self,
        queries: Float[Array, "batch queries key_dim"],
        keys: Float[Array, "batch keys key_dim"],
    ) -> Float[Array, "batch queries keys"]:
        """Score every query against every key."""
        import torch

        from dsearch.attention.scores import SCORES, squared_distance

        if self.name == "exact_match":
            away = squared_distance(queries, keys).detach() > (EQUAL * length(queries)).square()
            return torch.zeros_like(away, dtype=queries.dtype).masked_fill(away, -math.inf)
        return SCORES[self.name](queries, keys, *([self.width] if self.name in KERNELS else []))


def ranks_by_inner_product(score: Score) -> bool:
    """Return True if the index ranks by this score, so that no candidate is re-scored."""
    return isinstance(score, NamedScore) and score.name in INNER_PRODUCTS


def checked_score(score: str | Score, width: float | None) -> Score:
    """The score of that name, or the function or module that was given.

    Raises:
        InvalidRequest: as `NamedScore`; a width beside a function, which has its own.
    """
    if isinstance(score, str):
        return NamedScore(score, width)
    if width is not None:
        raise InvalidRequest(f"width={width} beside a score of your own; give the score its width itself")
    return score


def checked_pooling(pooling: str) -> str:
    """The name of a pooling.

    Raises:
        InvalidRequest: there is no such pooling; the message lists those there are.
    """
    if pooling not in POOLING_NAMES:
        raise InvalidRequest(f"pooling={pooling!r}; use one of {', '.join(POOLING_NAMES)}")
    return pooling


def checked_temperature(temperature: float | None, score: Score) -> float | None:
    """The temperature that replaces the head's own, None for none: kernels have a width instead.

    Raises:
        InvalidRequest: it is not a number above 0.
    """
    if temperature is None:
        if isinstance(score, NamedScore):
            return 1.0 if score.has_support else None
        from dsearch.attention.scores import KernelScore

        return 1.0 if isinstance(score, KernelScore) else None
    if not 0 < temperature < math.inf:
        raise InvalidRequest(f"temperature={temperature}; use a number above 0, or None for the head's own")
    return temperature


def chosen_stages(
    stages: int | None, head: HeadFormulas, *, has_tokens: bool, mode: Mode, plain: bool
) -> int:
    """The number of stages of a search: 2 if asked for, or if the head learned it and it is a hybrid search.

    Args:
        stages: as asked for; None for the head's own.
        head: the learned part.
        has_tokens: whether the documents have tokens.
        mode: legs of the search.
        plain: whether it ranks candidates by inner products.

    Raises:
        InvalidRequest: 2 of documents without tokens, or with options that it does not go with.
    """
    if stages is not None and stages not in (1, 2):
        raise InvalidRequest(f"stages={stages}; use 1 or 2")
    if stages is None:
        return 2 if head.second_stage is not None and has_tokens and plain and mode == "hybrid" else 1
    if stages == 1:
        return 1
    if not has_tokens:
        raise InvalidRequest(WITHOUT_TOKENS)
    if mode == "keyword" or not plain:
        raise InvalidRequest(
            f"stages=2 with mode={mode!r}, over='all' or a score of its own; a second stage follows hybrid "
            "or dense search by inner products among candidates: leave one of them out"
        )
    return 2


def check_texts(queries: int, texts: Sequence[Any] | None, mode: Mode, match_field: str | None) -> None:
    """Raise InvalidRequest for texts that are not one a query, or are missing where they are compared."""
    if isinstance(texts, str):
        raise InvalidRequest(f"texts={texts[:80]!r} is one text; give a list with the text of each state")
    if texts is not None and (wrong := next((t for t in texts if not isinstance(t, str)), "")) != "":
        raise InvalidRequest(f"{wrong!r} among the texts; give the words of each state, '' for none")
    if texts is not None and len(texts) != queries:
        raise InvalidRequest(f"{amount(len(texts), 'text')} for {queries} query states; give one each")
    if texts is None and match_field is not None:
        raise InvalidRequest(f"a match of {match_field!r} without texts; give the texts to be compared")
    if texts is None and mode == "keyword":
        raise InvalidRequest("mode='keyword' without texts; give the words of each query")


def texts_of_steps(texts: Sequence[Sequence[str]] | None, batch: int, steps: int) -> list[str] | None:
    """Return the texts of sequences in one list; None without texts.

    Raises:
        InvalidRequest: not a list of texts for each sequence, one for each step.
    """
    if texts is None:
        return None
    if len(texts) != batch or any(isinstance(line, str) or len(line) != steps for line in texts):
        raise InvalidRequest(
            f"texts that are not {amount(batch, 'list')} of {steps}; give a list of texts for each sequence"
        )
    return [text for line in texts for text in line]


def check_values(values: Array | None, positions: int) -> None:
    """Raise DimensionMismatch for values that are not a row for each position."""
    if values is not None and (values.ndim != 2 or len(values) != positions):
        raise DimensionMismatch(
            f"values of shape {list(values.shape)}; use [{positions}, value_dim], "
            "a row for each position of the snapshot"
        )


def check_bias(bias: Array | None, positions: int) -> None:
    """Raise DimensionMismatch for a bias that is not a number for each position; see `check_finite_bias`."""
    if bias is not None and bias.shape != (positions,):
        raise DimensionMismatch(
            f"a bias of shape {list(bias.shape)}; use [{positions}], a number for each position"
        )
    check_finite_bias(bias)


def check_finite_bias(bias: Array | None) -> None:
    """Raise InvalidRequest for a bias with numbers that are not finite; names the first."""
    if bias is None:
        return
    with without_gradients():
        if math.isfinite(float(bias.sum())):
            return
    finite = np.isfinite(numbers_of(bias))
    if not finite.all():
        at = int(finite.argmin())
        raise InvalidRequest(
            f"a bias of {float(bias[at])} at position {at}; use finite numbers, such as -1e4 for a document "
            "that no query is to see"
        )
