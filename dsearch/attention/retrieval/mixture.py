"""Mix the distributions of several heads into one: after the softmax, never before.

A sum of linear heads' logits is the logits of one linear head, so several would gain nothing; a
mixture of their softmaxes is richer than any one of them (Yang et al., 2018, arXiv:1711.03953, section 2.3).
"""

from __future__ import annotations

from jaxtyping import Float

from dsearch.attention.arrays import Array


def mix(
    head_weights: Float[Array, "*batch heads candidates"], mixture: Float[Array, "*#batch heads"]
) -> Float[Array, "*batch candidates"]:
    """weight(q, d) = Σ_h m_h a_h(q, d).

    Args:
        head_weights: the softmax weights of each head over the same candidates.
        mixture: the share of each head; a point of the simplex gives a distribution again. One head of
            share 1 gives its weights back unchanged.
    """
    return (head_weights * mixture[..., None]).sum(-2)
