"""Judging: one pass of rules, exact counts, verdicts by line, a ledger that adds up."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hand_made import BAD_JSON, CUT, MISSING, RULES, records
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.audit.columns import DETAIL_CHARS, FINDINGS_SCHEMA, LIGHT_SCHEMA
from eagle3_data.audit.judge import Judged, Ledger, LedgerError, finish, judge, light, merge
from eagle3_data.audit.rules.registry import Rule, Severity
from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.records.table import Note

LIMITS = Thresholds()


def run(rows: list[dict], rules=RULES, **more):
    return finish(merge([judge(records(rows), rules, LIMITS)]), **more)


def rule(code: str, name: str, condition, severity: Severity = Severity.ERROR, **more) -> Rule:
    return Rule(code, name, severity, "", condition, "Docs.", **more)


def test_findings_have_the_place_the_detail_and_the_tokens() -> None:
    found = judge(
        records(
            [
                {},
                {
                    "reasoning_state": "null",
                    "record_id": "r2",
                    "turn": 3,
                    "supervised_tokens": 70,
                    "completion_tokens": 71,
                },
            ]
        ),
        RULES,
        LIMITS,
    ).findings
    assert found.schema == pl.Schema(FINDINGS_SCHEMA)
    assert found.row(0, named=True) == {
        "code": "CAP001",
        "name": "reasoning-missing",
        "severity": "error",
        "file_no": 0,
        "line": 2,
        "offset": 100,
        "choice": 0,
        "turn": 3,
        "record_id": "r2",
        "at": "/response/reasoning",
        "detail": "finish_reason stop, id r2",
        "tokens": 70,
    }
    assert found.height == 1


def test_tokens_are_the_servers_count_where_nothing_was_assembled() -> None:
    found = judge(records([{"reasoning_state": "null"}]), RULES, LIMITS).findings
    assert found["tokens"].to_list() == [1000]


def test_null_conditions_do_not_fire() -> None:
    assert judge(
        records([{"finish_reason": None, "thinking_on": None}]), RULES, LIMITS
    ).findings.is_empty()


def test_rules_of_the_answer_do_not_see_unreadable_lines() -> None:
    always = rule("GEN900", "always", lambda r: pl.lit(True))
    byte_rule = rule("RAW900", "byte-rule", lambda r: pl.lit(True))
    found = judge(
        records([{}, {"status": "unreadable"}, {"status": "file", "line": None}]),
        (always, byte_rule),
        LIMITS,
    ).findings
    assert found.select("code", "line").rows() == [
        ("GEN900", 1),
        ("RAW900", 1),
        ("RAW900", 2),
        ("RAW900", None),
    ]


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        (lambda r: r.no_such_column == 1, "ColumnNotFoundError"),
        (lambda r: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda r: r.content_chars, "ComputeError: & on Int64 and Boolean"),
        (lambda r: r.line.cast(pl.String).str.to_integer(base=2) > 0, "ComputeError: strict"),
    ],
)
def test_a_broken_rule_is_named_and_the_others_still_run(condition, error: str) -> None:
    broken = rule("GEN901", "broken", condition)
    judged = judge(records([{"reasoning_state": "null"}, {}]), (broken, MISSING), LIMITS)
    assert judged.findings["code"].to_list() == ["CAP001"]
    (fault,) = judged.faults
    assert (fault.code, fault.name) == ("GEN901", "broken")
    assert fault.error.startswith(error)


def test_a_broken_detail_costs_the_detail_not_the_finding() -> None:
    broken = rule("GEN902", "broken-detail", lambda r: pl.lit(True), detail=lambda r: r.nowhere)
    judged = judge(records([{}]), (broken,), LIMITS)
    assert judged.findings["detail"].to_list() == [None]
    assert [fault.code for fault in judged.faults] == ["GEN902"]


def test_a_rule_of_another_type_than_boolean_is_a_fault() -> None:
    number = rule("RAW902", "number", lambda r: r.line)
    (fault,) = judge(records([{}]), (number,), LIMITS).faults
    assert fault.error == "TypeError: the condition of RAW902 gives Int64, not Boolean"


def test_one_fault_of_many_batches_is_told_once() -> None:
    broken = rule("GEN901", "broken", lambda r: r.no_such_column == 1)
    merged = merge(judge(records([{}]), (broken,), LIMITS) for _ in range(3))
    assert len(merged.faults) == 1
    assert merged.light.height == 3


def test_details_are_cut_and_made_only_where_the_rule_fired() -> None:
    long = rule("GEN903", "long", lambda r: r.line == 1, detail=lambda r: r.content)
    found = judge(records([{"content": "x" * 5000}, {"content": "y" * 5000}]), (long,), LIMITS)
    assert found.findings["detail"].to_list() == ["x" * DETAIL_CHARS]


def test_light_has_every_column_tolerates_missing_ones_and_keeps_keys() -> None:
    kept = light(
        pl.DataFrame({"file_no": [0], "line": [1], "key_prompt": [7], "content": ["long"]})
    )
    assert kept.columns == [*LIGHT_SCHEMA, "key_prompt"]
    assert kept["model"].to_list() == [None]


def test_verdicts_are_by_line_and_codes_by_record() -> None:
    outcome = run(
        [
            {},
            {"line": 2, "choice": 0},
            {"line": 2, "choice": 1, "reasoning_state": "empty", "finish_reason": "length"},
            {"line": 3, "status": "unreadable"},
            {"line": 5, "finish_reason": "length"},
            {"line": None, "status": "file"},
        ]
    )
    assert outcome.records.select("line", "choice", "codes", "verdict").rows() == [
        (1, 0, [], "keep"),
        (2, 0, [], "quarantine"),
        (2, 1, ["CAP001", "GEN001"], "quarantine"),
        (3, 0, ["RAW001"], "unreadable"),
        (5, 0, ["GEN001"], "keep"),
        (None, 0, [], "file"),
    ]
    assert outcome.ledger == Ledger(lines=4, kept=2, quarantined=1, unreadable=1)
    assert outcome.counts == {"CAP001": 1, "GEN001": 2, "RAW001": 1}


def test_corpus_findings_count_for_the_verdict_and_may_miss_columns() -> None:
    corpus = pl.DataFrame(
        {
            "code": ["SET001", "SET002"],
            "name": ["duplicate-record", "mixed"],
            "severity": ["error", "error"],
            "file_no": [0, 0],
            "line": [2, None],
            "choice": [0, None],
        }
    )
    outcome = run([{}, {}], corpus=corpus)
    assert outcome.records["verdict"].to_list() == ["keep", "quarantine"]
    assert outcome.findings.select("code", "line").rows() == [("SET002", None), ("SET001", 2)]


def test_the_severity_of_the_rule_that_ran_decides() -> None:
    rows = [{"reasoning_state": "null"}, {"finish_reason": "length"}]
    given = {"CAP001": Severity.WARN, "GEN001": Severity.ERROR}
    rules = [replace(r, severity=given.get(r.code, r.severity)) for r in RULES]
    outcome = run(rows, rules)
    assert outcome.records["verdict"].to_list() == ["keep", "quarantine"]
    assert outcome.findings.select("code", "severity").rows() == [
        ("CAP001", "warn"),
        ("GEN001", "error"),
    ]


def test_a_ledger_that_does_not_balance_raises() -> None:
    with pytest.raises(LedgerError, match="3 lines in, but 2 kept"):
        run([{}, {}], lines=3)
    assert run([{}, {}], lines=2).ledger.kept == 2


def foreign(line: int, file_no: int = 0, **more) -> dict:
    return {
        "line": line,
        "file_no": file_no,
        "notes": int(Note.NO_ANSWER),
        "note_detail": "keys: instruction, output",
        "reasoning_state": "missing",
        **more,
    }


NO_ANSWER = rule(
    "REC001", "no-answer", lambda r: r.noted(Note.NO_ANSWER), detail=lambda r: r.note_detail
)


def test_a_foreign_file_is_told_once_and_still_counted() -> None:
    rows = [foreign(1), foreign(2), foreign(3), {"line": 1, "file_no": 1}, foreign(2, 1)]
    outcome = run(rows, (NO_ANSWER, MISSING))
    told = outcome.findings.filter(file_no=0)
    assert told.select("code", "line", "detail").rows() == [
        (
            "REC001",
            None,
            "all 3 records of this file have no place for an answer; keys: instruction, output",
        )
    ]
    assert outcome.findings.filter(file_no=1).select("code", "line").rows() == [
        ("CAP001", 2),
        ("REC001", 2),
    ]
    assert outcome.counts == {"REC001": 4, "CAP001": 1}
    assert outcome.ledger == Ledger(lines=5, kept=1, quarantined=4, unreadable=0)
    assert outcome.records["codes"].to_list()[:3] == [["REC001"]] * 3


def test_a_foreign_file_that_nobody_counted_has_no_tokens() -> None:
    rows = [foreign(n, completion_tokens=None) for n in (1, 2)]
    assert run(rows, (NO_ANSWER,)).findings["tokens"].to_list() == [None]


def test_nothing_in_nothing_out() -> None:
    outcome = finish(merge([]))
    assert outcome.ledger == Ledger(0, 0, 0, 0)
    assert outcome.records.columns[-2:] == ["codes", "verdict"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 6),
            st.sampled_from(["record", "unreadable"]),
            st.sampled_from(["text", "null"]),
            st.sampled_from(["stop", "length"]),
        ),
        max_size=20,
    ),
    st.integers(1, 20),
)
def test_the_result_does_not_depend_on_the_batches(lines, cut: int) -> None:
    frame = records(
        [
            {
                "file_no": f,
                "line": n,
                "status": s,
                "reasoning_state": r,
                "finish_reason": e,
                "choice": i,
            }
            for i, (f, n, s, r, e) in enumerate(lines)
        ]
    )
    whole = finish(merge([judge(frame, RULES, LIMITS)]))
    parts: list[Judged] = [
        judge(frame[i : i + cut], RULES, LIMITS) for i in range(0, frame.height, cut)
    ]
    split = finish(merge(parts))
    order = ["file_no", "line", "choice", "code"]
    assert whole.findings.sort(order).equals(split.findings.sort(order))
    assert whole.records.equals(split.records)
    assert whole.ledger == split.ledger
    assert whole.ledger.lines == len({(f, n) for f, n, *_ in lines})
    assert whole.counts.get(CUT.code, 0) == sum(
        s == "record" and e == "length" for *_, s, _, e in lines
    )
    assert whole.counts.get(BAD_JSON.code, 0) == sum(s == "unreadable" for _, _, s, _, _ in lines)
