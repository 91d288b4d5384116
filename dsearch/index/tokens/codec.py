"""`TokenCodec`: token states as small integers, and back.

    t    = unit(P s)                           P: principal components of token states       [m, encoder_dim]
    code = round(t / c), clipped               c: a step for each dimension, by its spread   [m]
    t'   = c · code

The step is the same for every token, so a query's inner product with t' is (c q) · code: what is stored is
only turned into numbers, never multiplied back. The components are not centred: inner products stay what they
are, as well as m dimensions can show them.

With 4 bits two dimensions share a byte: i in its lower half, i + m/2 in its upper one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, UInt8

from dsearch.errors import CorruptData, InvalidRequest

BITS = (4, 8)
# Of the deviation of a dimension, at which a number is clipped: near the least squared error for a normal
# distribution with 16 and 256 steps.
_CLIPPED_AT = {4: 2.7, 8: 5.0}
_LEAST_DEVIATION = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class TokenCodec:
    """Projection and rounding of token states.

    Attributes:
        projection: P, orthonormal rows.
        steps: c.
        bits: of a dimension, 4 or 8.
    """

    projection: Float32[np.ndarray, "dims encoder_dim"]
    steps: Float32[np.ndarray, " dims"]
    bits: int

    @classmethod
    def fit(cls, states: Float32[np.ndarray, "tokens encoder_dim"], *, dims: int, bits: int) -> TokenCodec:
        """Fit to token states of unit length.

        Args:
            states: some thousand; fewer leave dimensions that mean little.
            dims: m, at most encoder_dim; an even number.
            bits: 4 or 8.

        Raises:
            InvalidRequest: dims or bits out of range.
        """
        encoder_dim = states.shape[1]
        if bits not in BITS:
            raise InvalidRequest(f"bits={bits}; use 4 or 8")
        if not 2 <= dims <= encoder_dim or dims % 2:
            raise InvalidRequest(f"dims={dims}; use an even number from 2 to {encoder_dim}")
        moments = states.T.astype(np.float64) @ states / max(len(states), 1)
        _, vectors = np.linalg.eigh(moments)
        components = vectors[:, ::-1][:, :dims].T
        # A component and its negative are as good: one of them, whatever the library's choice.
        largest = np.abs(components).argmax(axis=1)
        components = components * np.sign(components[np.arange(dims), largest])[:, None]
        projection = np.ascontiguousarray(components, np.float32)
        projected = _units(states @ projection.T)
        spread = np.sqrt((projected.astype(np.float64) ** 2).mean(0)) if len(states) else np.ones(dims)
        spread = np.maximum(spread, _LEAST_DEVIATION)
        steps = _CLIPPED_AT[bits] * spread / _top(bits)
        return cls(projection, steps.astype(np.float32), bits)

    @property
    def dims(self) -> int:
        """m."""
        return len(self.steps)

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return self.dims * self.bits // 8

    def projected(
        self, states: Float32[np.ndarray, "tokens encoder_dim"]
    ) -> Float32[np.ndarray, "tokens dims"]:
        """unit(P s)."""
        return _units(states @ self.projection.T)

    def codes(self, projected: Float32[np.ndarray, "tokens dims"]) -> UInt8[np.ndarray, "tokens width"]:
        """Round projected states."""
        top = _top(self.bits)
        rounded = np.clip(np.rint(projected / self.steps), -top, top).astype(np.int16)
        if self.bits == 8:
            return rounded.astype(np.int8).view(np.uint8)
        low, high = np.split((rounded + 8).astype(np.uint8), 2, axis=1)
        return low | (high << 4)

    def numbers(self, codes: UInt8[np.ndarray, "tokens width"]) -> Float32[np.ndarray, "tokens dims"]:
        """The integers of codes, as numbers; times `steps` they are the states."""
        if self.bits == 8:
            return np.ascontiguousarray(codes).view(np.int8).astype(np.float32)
        numbers = np.empty((len(codes), self.dims), np.float32)
        half = self.dims // 2
        numbers[:, :half] = codes & 15
        numbers[:, half:] = codes >> 4
        numbers -= 8
        return numbers

    def arrays(self) -> dict[str, np.ndarray]:
        """As arrays by name, for a file."""
        return {
            "projection": self.projection,
            "steps": self.steps,
            "bits": np.array([self.bits], np.int64),
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray]) -> TokenCodec:
        """Read what `arrays` gave.

        Raises:
            CorruptData: these are no arrays of a codec.
        """
        try:
            projection, steps = arrays["projection"], arrays["steps"]
            bits = int(arrays["bits"][0])
            fits = projection.ndim == 2 and steps.shape == (len(projection),) and bits in BITS
            fits = fits and projection.dtype == steps.dtype == np.float32
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise CorruptData(f"the projection of token states cannot be read ({error})") from error
        if not fits:
            raise CorruptData(
                f"a projection of token states of shape {list(projection.shape)} with steps of "
                f"{list(steps.shape)} and {bits} bits"
            )
        return cls(projection, steps, bits)


def _top(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _units(numbers: Float32[np.ndarray, "tokens dims"]) -> Float32[np.ndarray, "tokens dims"]:
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    return (numbers / np.maximum(lengths, 1e-12)).astype(np.float32)
