"""Lossless packing of bf16 numbers: their high bytes, then their low bytes, through zstd.

What enters: bf16 values as uint16. What leaves: one zstd frame, and the same values back. It
promises the same bytes for the same values. The high byte (sign and exponent) takes few values and
packs well, the low byte (mantissa) hardly; mixed as they lie in memory zstd finds little (measured
on hidden states of SmolLM2: 1.24 times as they lie, 1.43 times split at level 1, 1.38 at level 3,
at 380 MB/s on one core).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits = NDArray[np.uint16]

LEVEL = 1


class Packing(StrEnum):
    """How the states lie in their files."""

    NONE = "none"
    ZSTD = "zstd"


WORTH = 0.9
"""`auto` packs when the first file comes out smaller than this share of its raw bytes."""


def pack(values: Bits) -> bytes:
    """One frame."""
    import zstandard

    planes = values.reshape(-1).view(np.uint8).reshape(-1, 2)
    split = np.concatenate([planes[:, 1], planes[:, 0]])
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True).compress(split.data)


def unpack(frame: bytes | memoryview, shape: tuple[int, ...]) -> Bits:
    """The inverse; a fresh array. Raises ValueError for a frame that is not of this shape."""
    import zstandard

    try:
        split = np.frombuffer(zstandard.ZstdDecompressor().decompress(frame), dtype=np.uint8)
    except zstandard.ZstdError as error:
        raise ValueError(f"damaged ({error})") from None
    count = int(np.prod(shape, dtype=np.int64))
    if split.size != 2 * count:
        raise ValueError(f"{split.size} bytes, {2 * count} expected")
    planes = np.empty((count, 2), dtype=np.uint8)
    planes[:, 1], planes[:, 0] = split[:count], split[count:]
    return planes.reshape(-1).view(np.uint16).reshape(shape)
