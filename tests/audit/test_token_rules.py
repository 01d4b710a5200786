"""The TOK and CHT rules that read sample columns, on columns written out by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from eagle3_data.audit.answers import ANSWER_COLUMNS
from eagle3_data.audit.rules import all_rules
from eagle3_data.audit.rules.registry import Columns, Scope
from eagle3_data.audit.signals import SIGNAL_COLUMNS
from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.records.table import RECORD_SCHEMA
from eagle3_data.tokens.samples import SAMPLE_COLUMNS

SCHEMA = RECORD_SCHEMA | SAMPLE_COLUMNS | SIGNAL_COLUMNS | ANSWER_COLUMNS
R = Columns(Thresholds())
RULES = {
    rule.code: rule
    for rule in all_rules()
    if rule.scope is Scope.RECORD and (rule.family == "TOK" or rule.code in ("CHT009", "CHT010"))
}

SOUND: dict[str, Any] = {
    "status": "record", "roles": "u", "content": "In Oslo.",
    "finish_reason": "stop", "completion_tokens": 5,
    "prompt_tokens": 4, "prompt_ids": [1, 9, 9, 7], "completion_ids": [5, 6, 8, 4, 2],
    "ids_captured": True, "thinking_on": True, "open_in_prompt": True,
    "grade": "A", "grade_reason": "captured", "prompt_source": "captured", "assembled_tokens": 5,
    "count_delta": 0, "prompt_len": 4, "seq_len": 9, "supervised_tokens": 5,
    "prompt_tokens_rendered": 4, "prompt_ids_match": True, "prompt_quotes_marker": False,
    "double_bos": False, "prompt_ends_open": True, "starts_open": False, "ends_eot": True,
    "text_matches_ids": True, "roundtrip": True, "max_id": 9, "id_changes": 5,
    "profile_vocab_size": 10,
}  # fmt: skip
NO_IDS: dict[str, Any] = {
    "prompt_ids": None, "completion_ids": None, "ids_captured": False, "prompt_source": "template",
    "grade": "B", "grade_reason": "count-equal", "prompt_ids_match": None,
    "text_matches_ids": None, "roundtrip": None,
}  # fmt: skip
UNASSEMBLED: dict[str, Any] = dict.fromkeys([*SAMPLE_COLUMNS], None)


def fired(changes: dict[str, Any]) -> set[str]:
    row = SOUND | changes
    frame = pl.DataFrame({name: [row.get(name)] for name in SCHEMA}, schema=SCHEMA)
    found = frame.select(
        rule.condition(R).fill_null(False).alias(code) for code, rule in RULES.items()
    )
    details = frame.select(
        rule.detail(R).cast(pl.String).alias(code)
        for code, rule in RULES.items()
        if rule.detail is not None and found[code].item()
    )
    assert all(detail for detail in details.row(0)) if details.width else True
    return {code for code in RULES if found[code].item()}


@pytest.mark.parametrize("changes", [{}, NO_IDS, UNASSEMBLED | NO_IDS | UNASSEMBLED])
def test_sound_and_unassembled_rows_fire_nothing(changes: dict[str, Any]) -> None:
    assert fired(changes) == set()


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("TOK001", NO_IDS | {"grade": "E", "grade_reason": "count-differs", "assembled_tokens": 9}),
        ("TOK002", NO_IDS | {"grade": "E", "grade_reason": "ambiguous"}),
        ("TOK003", {"grade": "E", "grade_reason": "captured-contradicts-count"}),
        ("TOK004", {"text_matches_ids": False}),
        ("TOK005", {"roundtrip": False}),
        ("TOK006", {"prompt_ids_match": False}),
        ("TOK007", NO_IDS | {"prompt_tokens": 3}),
        ("TOK008", {"double_bos": True}),
        ("TOK009", {"max_id": 10}),
        ("TOK010", {"supervised_tokens": 0}),
        ("TOK010", {"completion_ids": [], "prompt_ids": None, "content": None}),
        ("TOK011", {"ends_eot": False}),
        ("TOK011", {"ends_eot": False, "stop_reason": "4"}),  # not the last id
        ("TOK012", {"prompt_ends_open": False}),
        ("TOK013", {"prompt_ids": None}),
        ("TOK013", {"completion_ids": []}),
        ("TOK014", {"id_changes": 0, "supervised_tokens": 64}),
        ("TOK014", {"id_changes": 1, "supervised_tokens": 64}),
        ("TOK015", {"starts_open": True}),
        ("TOK016", NO_IDS | {"grade": "E", "grade_reason": "tools-unknown"}),
        ("TOK016", NO_IDS | {"grade": "E", "grade_reason": None}),
        ("TOK017", NO_IDS | {"prompt_source": "none", "prompt_reason": "template: no"}),
        ("TOK018", {"prompt_tokens": 5}),
        ("TOK018", UNASSEMBLED | {"prompt_tokens": 3}),
        ("CHT010", {"prompt_quotes_marker": True}),
    ],
)
def test_each_fault_is_told_once(code: str, changes: dict[str, Any]) -> None:
    assert fired(changes) == {code}


def test_a_longer_prompt_without_a_system_message_is_a_hidden_one() -> None:
    assert fired(NO_IDS | {"prompt_tokens": 20}) == {"CHT009"}
    assert fired(NO_IDS | {"prompt_tokens": 20, "roles": "su"}) == {"TOK007"}
    assert fired({"prompt_tokens": 20}) == {"TOK018"}


@pytest.mark.parametrize(
    "changes",
    [
        {"ends_eot": False, "finish_reason": "length"},
        {"ends_eot": False, "stop_reason": "Human:"},
        {"ends_eot": False, "stop_reason": "2"},  # a stop id of the request, the last one
        {"prompt_ends_open": False, "thinking_on": False},
        {"prompt_ends_open": False, "open_in_prompt": False},
        {"prompt_ends_open": False, "starts_open": True},
        {"id_changes": 0, "supervised_tokens": 3},
        {"max_id": 10, "profile_vocab_size": None},
        NO_IDS | {"prompt_source": "layout", "prompt_tokens": 3},
        NO_IDS | {"ends_eot": False},
        NO_IDS | {"prompt_source": "none", "prompt_reason": "the record holds no request"},
        {"prompt_tokens": None},
        {"finish_reason": None, "ends_eot": False},
    ],
)
def test_what_must_stay(changes: dict[str, Any]) -> None:
    assert fired(changes) == set()
