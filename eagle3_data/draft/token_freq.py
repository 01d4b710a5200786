"""`token_freq.pt` of speculators: how often each token is supervised, as a torch file.

What enters: token id → count. What leaves: the bytes of a file that `torch.load(weights_only=True)`
reads as that dict. A torch file is a pickle, which this product otherwise neither reads nor writes:
the format demands it, it holds plain integers, and it is only made when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO


class TorchMissing(ValueError):
    """Something needs torch and it is not installed; the message says what to do."""


def torch_bytes(frequencies: Mapping[int, int]) -> bytes:
    """The file. Raises TorchMissing."""
    try:
        import torch
    except ImportError:
        raise TorchMissing(
            "token_freq.pt is a torch file, and torch is not installed: install it, or leave out"
            " --with-token-freq (speculators needs the file for a reduced draft vocabulary only,"
            " and `speculators prepare-data --no-skip-token-freq` makes it)"
        ) from None
    buffer = BytesIO()
    torch.save(dict(frequencies), buffer)
    return buffer.getvalue()
