"""Every number that a signal or a rule compares with, in one place, each with its unit and its reason.

What enters: the `[thresholds]` table of the configuration. What leaves: a frozen `Thresholds`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Thresholds(BaseModel):
    """Settable limits. An unknown name is an error, so that a typo never leaves a default in force."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # --- records, capture, wrapping ---

    # --- generation, chat, tokens, corpus ---
