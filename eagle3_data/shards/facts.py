"""The facts of a run: what all its samples have in common, from the objects that made them.

What enters: profile, tokenizer, template, rules and thresholds. What leaves: `ShardFacts`. It
promises digests over contents, never over paths, so that the same run on another machine has the
same facts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eagle3_data.shards.manifest import canonical
from eagle3_data.shards.schema import ShardFacts

if TYPE_CHECKING:
    from eagle3_data.audit.rules.registry import Rule
    from eagle3_data.audit.thresholds import Thresholds
    from eagle3_data.profiles.profile import Profile
    from eagle3_data.tokens.tokenizer import Tokenizer


def facts_of(
    profile: Profile,
    tokenizer: Tokenizer,
    *,
    chat_template: str | None,
    rules: Sequence[Rule],
    thresholds: Thresholds,
    product_version: str,
) -> ShardFacts:
    """The facts of a run. `chat_template`: the source that prompts were rendered with; None takes
    the tokenizer's own.

    `rules`: those that ran, with their severities in force. Raises MarkerMismatch when profile and
    tokenizer differ.
    """
    from eagle3_data.profiles.load import fingerprint
    from eagle3_data.tokens.markers import resolve

    template = tokenizer.chat_template if chat_template is None else chat_template
    return ShardFacts(
        profile=profile.name,
        profile_hash=fingerprint(profile),
        tokenizer=tokenizer.name,
        tokenizer_hash=tokenizer.fingerprint,
        template_hash=hashlib.sha256(template.encode()).hexdigest() if template else "",
        vocab_size=tokenizer.vocab_size,
        end_of_turn=tuple(sorted(resolve(profile, tokenizer).stops)),
        rules_version=rules_version(rules, thresholds),
        product_version=product_version,
    )


def rules_version(rules: Sequence[Rule], thresholds: Thresholds) -> str:
    """SHA-256 (hex) over codes, severities and thresholds in force: what decides which records are
    kept.
    """
    chosen = sorted((rule.code, rule.severity.value) for rule in rules)
    body = {"rules": chosen, "thresholds": thresholds.model_dump(mode="json")}
    return hashlib.sha256(canonical(body)).hexdigest()
