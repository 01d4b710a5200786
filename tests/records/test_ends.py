"""The table of finish reasons: no word in two groups, and every reader reads it."""

from __future__ import annotations

from pathlib import Path

from eagle3_data.records import ends

PACKAGE = Path(__file__).parents[2] / "eagle3_data"
GROUPS = (
    ends.STOPPED, ends.CALLED, ends.STOP_STRING, ends.CUT_BY_LENGTH, ends.MODERATED,
    ends.BROKEN_OFF,
)  # fmt: skip


def test_a_word_is_in_one_group() -> None:
    words = [word for group in GROUPS for word in group]
    assert len(words) == len(set(words))


def test_no_rule_or_cause_lists_finish_reasons_of_its_own() -> None:
    for path in sorted((PACKAGE / "audit").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert 'finish_reason") ==' not in text and "finish_reason ==" not in text, path
        assert 'finish_reason.is_in(["' not in text and 'finish_reason").is_in(["' not in text, path
