"""CKP: what `lint` finds in the checkpoint of a drafter. Every code with its documentation.

What enters: nothing. What leaves: `CHECKPOINT_RULES`, code → `Rule`. They are not in the registry
of the audit: `lint` decides when they fire.
"""

from __future__ import annotations

from typing import Final

from eagle3_data.audit.rules.registry import Rule

CHECKPOINT_RULES: Final[dict[str, Rule]] = {}
