"""The report: tables, exit code, JSON form, the text of one screen."""

from __future__ import annotations

import dataclasses
import html

import polars as pl
import pytest
from hand_made import CUT, PROFILE, RULES, report

from eagle3_data.audit.diagnose import Diagnosis, diagnose
from eagle3_data.audit.formats import render
from eagle3_data.audit.formats.text import report_text, share, size
from eagle3_data.audit.judge import RuleFault
from eagle3_data.audit.report import Report, TokenizerFacts
from eagle3_data.audit.rules.registry import Rule, Severity

ROWS = [
    {"supervised_tokens": 100, "grade": "A"},
    {"supervised_tokens": 300, "grade": "B"},
    {
        "supervised_tokens": 50,
        "grade": "E",
        "reasoning_state": "null",
        "reasoning_chars": 0,
        "finish_reason": "length",
        "record_id": "r[bold]3",
    },
    {"supervised_tokens": 7, "grade": "B", "finish_reason": "length"},
    {"status": "unreadable", "completion_tokens": None},
]


def test_tables_are_exact() -> None:
    made = report(ROWS)
    assert made.grades.rows() == [("A", 1, 0.25, 100), ("B", 2, 0.5, 307), ("E", 1, 0.25, 50)]
    assert made.rules.rows() == [
        ("CAP001", "reasoning-missing", "error", 1, 0.2, 50, 0, 3),
        ("RAW001", "bad-json", "error", 1, 0.2, None, 0, 5),
        ("GEN001", "cut-by-length", "warn", 2, 0.4, 57, 0, 3),
    ]
    (facts,) = made.inputs
    assert dataclasses.astuple(facts) == ("raw.jsonl", 1234, 5, 4, 1)
    assert made.record_count == 4


def test_a_rule_about_files_has_no_share_of_records() -> None:
    empty = Rule("RAW001", "empty-file", Severity.ERROR, "", lambda r: r.status == "file", "Docs.")
    made = report([{"status": "file", "line": None, "completion_tokens": None}, {}], (empty,))
    assert made.rules.rows() == [("RAW001", "empty-file", "error", 1, None, None, 0, None)]
    first, _, *rest = str(made).splitlines()
    assert first == "FAULTS  in the inputs as a whole; no single line is to blame"
    assert "RAW001  empty-file  error          1     file              raw.jsonl" in rest
    assert "1 file; first at raw.jsonl" in render(made, "github").decode()


def test_exit_codes() -> None:
    assert report([{}]).exit_code == 0
    assert report([{"finish_reason": "length"}]).exit_code == 0
    assert report(ROWS).exit_code == 1
    broken = dataclasses.replace(report([{}]), faults=(RuleFault("GEN001", "x", "boom"),))
    assert broken.exit_code == 2


def test_inputs_without_lines_are_listed() -> None:
    made = report([{"file_no": 1}], paths=("empty.jsonl", "b.jsonl"))
    assert [(f.path, f.lines) for f in made.inputs] == [("empty.jsonl", 0), ("b.jsonl", 1)]


def test_grade_b_is_never_called_proof() -> None:
    (note,) = report([{"grade": "B"}] * 50).notes
    assert note == (
        "Grade B is strong evidence, not proof: in a real capture 24 of 300 records were sampled in"
        " a tokenization that their text does not encode to, and 12 of those keep their length."
        " Expect about 4% of the 50 B records (2) to hold other ids. Only captured ids"
        " (return_token_ids) are exact."
    )
    assert report([{"grade": "A"}]).notes == ()


def test_a_fallback_of_the_tokenizer_is_the_first_note() -> None:
    facts = TokenizerFacts("t", "tokenizers", "fastokens disagreed on 1 of 50 texts", "f")
    assert report([{"grade": "B"}], tokenizer=facts).notes[0] == facts.note


def test_the_screen() -> None:
    made = report(ROWS)
    made = dataclasses.replace(
        made,
        diagnoses=tuple(diagnose(made.records, made.findings, PROFILE, paths=["raw.jsonl"])),
        notes=("something loud",),
    )
    assert made.diagnoses == ()
    assert (
        report_text(made, show=1)
        == """\
FAULTS  2 of 5 lines must not be trained on
5 lines in = 3 kept + 1 quarantined + 1 unreadable
  raw.jsonl: 1.2 kB, 5 lines, 4 records
profile think-demo (given)
no tokenizer: the token rules did not run and no record is graded

Grade                                  records     share   supervised tokens
A  exact, ids captured                       1      25 %                 100
B  count agrees                              2      50 %                 307
E  contradicted or ambiguous                 1      25 %                  50

Note: something loud
1 rule not run, needs a tokenizer: TOK001

Code    Rule               level    records    share      tokens  first place
CAP001  reasoning-missing  error          1     20 %          50  raw.jsonl:3
RAW001  bad-json           error          1     20 %              raw.jsonl:5
GEN001  cut-by-length      warn           2     40 %          57  raw.jsonl:3

CAP001 reasoning-missing  1 found, 1 example
  raw.jsonl:3  /response/reasoning  id r[bold]3
    > finish_reason length, id r[bold]3
RAW001 bad-json  1 found, 1 example
  raw.jsonl:5
GEN001 cut-by-length  2 found, 1 example
  raw.jsonl:3  id r[bold]3

Next: eagle3-data rule CAP001    what it means and what to do
      eagle3-data check raw.jsonl --quarantine DIR    puts the bad lines apart
"""
    )


def test_statistics_are_the_table_alone_by_count() -> None:
    assert report_text(report(ROWS), statistics=True) == (
        "        2  GEN001  cut-by-length (warn)\n"
        "        1  CAP001  reasoning-missing (error)\n"
        "        1  RAW001  bad-json (error)\n"
    )
    assert report_text(report([{}]), statistics=True) == "nothing found\n"


@pytest.mark.parametrize(
    ("rows", "facts", "first"),
    [
        ([{}], {}, "CLEAN  nothing found"),
        ([{"finish_reason": "length"}], {}, "CLEAN  1 rule warned, no line is quarantined"),
        ([], {}, "EMPTY  the inputs hold no lines"),
        ([{}], {"partial": True}, "INTERRUPTED  this is what was read until then"),
    ],
)
def test_the_first_line(rows, facts, first: str) -> None:
    assert str(report(rows, **facts)).splitlines()[0] == first


def test_colour_only_paints_finished_pieces() -> None:
    class Marked:
        def good(self, text: str) -> str:
            return f"<g>{text}</g>"

        def bad(self, text: str) -> str:
            return f"<b>{text}</b>"

        def dim(self, text: str) -> str:
            return f"<d>{text}</d>"

        def strong(self, text: str) -> str:
            return f"<s>{text}</s>"

    painted = report_text(report(ROWS), colour=Marked())
    plain = painted
    for tag in "gbds":
        plain = plain.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    assert plain == report_text(report(ROWS))
    assert painted.startswith("<b>FAULTS</b>")


def test_the_json_form() -> None:
    made = report([{"reasoning_state": "null"}] * 5).to_dict(examples=2)
    assert list(made) == [
        "schema_version",
        "tool",
        "versions",
        "exit_code",
        "partial",
        "seconds",
        "ledger",
        "inputs",
        "records",
        "profile",
        "tokenizer",
        "notes",
        "diagnoses",
        "grades",
        "rules",
        "rules_run",
        "rules_not_run",
        "faults",
        "findings_total",
        "findings_shown",
        "findings",
    ]
    assert made["schema_version"] == 1
    assert made["ledger"] == {"lines": 5, "kept": 0, "quarantined": 5, "unreadable": 0}
    assert (made["findings_total"], made["findings_shown"]) == (5, 2)
    assert made["rules"] == [
        {
            "file": "raw.jsonl",
            "code": "CAP001",
            "name": "reasoning-missing",
            "severity": "error",
            "count": 5,
            "share": 1.0,
            "tokens": 5000,
            "line": 1,
        }
    ]
    assert [row["line"] for row in made["findings"]] == [1, 2]
    assert [row["code"] for row in made["rules_run"]] == [rule.code for rule in RULES]


def test_a_notebook_shows_the_text_and_nothing_of_the_data_as_markup() -> None:
    made = report([{"reasoning_state": "null", "record_id": "<img src=x>"}], paths=("<b>.jsonl",))
    html = made._repr_html_()
    assert html.startswith('<pre class="eagle3-data">FAULTS')
    assert "&lt;b&gt;.jsonl" in html
    assert html.count("<") == 2
    assert repr(made).startswith("<Report: 1 lines, exit 1>\nFAULTS")


def test_numbers_for_people() -> None:
    assert [share(x) for x in (0.0, 1.0, 0.25, 0.0388, 0.0004, 0.9996)] == [
        "0 %",
        "100 %",
        "25 %",
        "3.9 %",
        "<0.1 %",
        ">99.9 %",
    ]
    assert [size(x) for x in (0, 999, 1000, 118_300_000, 5 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "118.3 MB",
        "5000.0 TB",
    ]


def test_a_rule_without_records_of_its_own_has_its_place_in_the_file() -> None:
    made = report([{}])
    assert made.place(0, None) == "raw.jsonl"
    assert made.place(None, None) == "all inputs"
    assert made.place(0, 7) == "raw.jsonl:7"
    assert isinstance(made.findings, pl.DataFrame)


def hint(made: Report) -> list[str]:
    return str(made).rstrip().split("\n\n")[-1].splitlines()


def test_the_next_command_repeats_the_call() -> None:
    asked = ("check", "my raw.jsonl", "--tokenizer", "$T", "--ignore", "CAP;rm", "--repair")
    again = "eagle3-data check 'my raw.jsonl' --tokenizer '$T' --ignore 'CAP;rm' --repair"
    bad = dataclasses.replace(report(ROWS), call=asked)
    assert hint(bad)[1:] == [f"      {again} --quarantine DIR    puts the bad lines apart"]
    apart = dataclasses.replace(bad, call=(*asked, "--quarantine", "q"))
    assert hint(apart) == ["Next: eagle3-data rule CAP001    what it means and what to do"]
    good = dataclasses.replace(
        report([{}]), call=("check", "a", "--profile", "p", "--quarantine", "q")
    )
    assert hint(good) == [
        "Next: eagle3-data check a --profile p --tokenizer DIR    proves the token stream"
    ]
    assert "call" not in bad.to_dict()


def test_a_hint_is_inert() -> None:
    (_, line) = hint(dataclasses.replace(report(ROWS), call=("check", "a\x1b[2J\n::error ::b")))
    assert line == (
        "      eagle3-data check 'a\\x1b[2J\\n::error \\x3a:b' --quarantine DIR"
        "    puts the bad lines apart"
    )


@pytest.mark.parametrize(
    ("code", "second"),
    [
        ("SHD005", "call that wrote the shards    writes missing and damaged ones anew"),
        (
            "CNV001",
            "eagle3-data convert call with --quarantine DIR    puts the bad lines apart",
        ),
    ],
)
def test_the_next_step_is_that_of_the_command(code: str, second: str) -> None:
    made = report(
        [{"finish_reason": "length"}],
        (dataclasses.replace(CUT, code=code, severity=Severity.ERROR),),
    )
    assert hint(made) == [
        f"Next: eagle3-data rule {code}    what it means and what to do",
        f"      the same {second}",
    ]


def test_what_the_same_conversion_would_refuse_is_left_to_the_rule_page() -> None:
    made = report(
        [{"finish_reason": "length"}],
        (dataclasses.replace(CUT, code="SHD004", severity=Severity.ERROR),),
    )
    assert hint(made) == ["Next: eagle3-data rule SHD004    what it means and what to do"]


def diagnosed(*codes: str) -> Report:
    made = report(ROWS)
    said = [Diagnosis(f"cause-{code}", "so it is", (), "Do it.", (code,), 2, 0.4) for code in codes]
    return dataclasses.replace(made, diagnoses=tuple(said))


def test_a_diagnosis_of_warnings_is_called_one() -> None:
    text = str(diagnosed("CAP001", "GEN001"))
    assert "1. cause-CAP001: so it is\n   2 records (40 %); explains CAP001\n" in text
    assert (
        "2. cause-GEN001 (warning): so it is\n"
        "   2 records (40 %), kept unless they have an error too; explains GEN001\n"
    ) in text
    page = html.unescape(render(diagnosed("CAP001", "GEN001"), "markdown").decode())
    assert "### cause-CAP001: so it is\n\n2 records (40 %); explains CAP001\n" in page
    assert (
        "### cause-GEN001 (warning): so it is\n\n"
        "2 records (40 %), kept unless they have an error too; explains GEN001\n"
    ) in page


def test_github_annotates_a_diagnosis_of_warnings_as_warning() -> None:
    lines = render(diagnosed("CAP001", "GEN001"), "github").decode().splitlines()
    assert lines[0].startswith("::error title=eagle3-data%3A cause-CAP001::")
    assert lines[1].startswith("::warning title=eagle3-data%3A cause-GEN001::")
    assert (
        "::error"
        not in render(
            dataclasses.replace(
                report([{"finish_reason": "length"}]), diagnoses=diagnosed("GEN001").diagnoses
            ),
            "github",
        ).decode()
    )
