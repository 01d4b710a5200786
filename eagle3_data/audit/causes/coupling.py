"""The one table that ties causes to rules, by name: what a cause starts from or explains.

A test compares it with the registry, so that a renamed rule is noticed here.
"""

from __future__ import annotations

from typing import Final

Names = tuple[str, ...]

THOUGHT_IN_CONTENT: Final[Names] = ("thought-in-content",)
CLOSING_MARKER_ONLY: Final[Names] = ("closing-marker-only",)
FOREIGN_MARKERS: Final[Names] = ("thought-in-foreign-markers",)
THOUGHT_MISSING: Final[Names] = ("reasoning-missing",)
THOUGHT_COUNTED: Final[Names] = (
    "reasoning-lost-by-usage",
    "tokens-unaccounted",
    "reasoning-counted-but-missing",
)
THOUGHT_FOLLOWS: Final[Names] = ("thought-missing-in-some",)
NOTHING_SAID: Final[Names] = ("nothing-said",)
KEY_RENAMED: Final[Names] = ("reasoning-key-changes",)
PROMPT_DIFFERS: Final[Names] = ("prompt-ids-differ", "prompt-count-differs")
PROMPT_NOT_BUILT: Final[Names] = ("prompt-not-built",)
CUT: Final[Names] = ("cut-in-thought", "cut-in-thought-unproven", "many-cut", "cut-by-length")
CLOSED_IN_THOUGHT: Final[Names] = ("closed-inside-thought",)
ENDED_IN_THOUGHT: Final[Names] = ("ended-in-thought",)
OTHER_TEXT: Final[Names] = ("ids-decode-to-other-text",)
WRITTEN_AGAIN: Final[Names] = ("duplicate-record",)
MIXED_MODELS: Final[Names] = ("mixed-models",)
TIMEOUT: Final[Names] = ("latency-spike",)
