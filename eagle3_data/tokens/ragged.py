"""A batch of id sequences as one flat array and its offsets, so that no Python object is made per
token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """`n` sequences. `ids`: int32 [total]; `offsets`: int64 [n + 1]; sequence i is
    ids[offsets[i]:offsets[i + 1]].
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.int32]:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence, int64 [n]."""
        return np.diff(self.offsets)
