"""Output formats: they parse, are complete, and no text of a capture has force in any of them."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from hand_made import RULES, report
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3_data.audit.causes.case import Diagnosis
from eagle3_data.audit.columns import FINDINGS_SCHEMA
from eagle3_data.audit.formats import FORMATS, render
from eagle3_data.audit.judge import RuleFault
from eagle3_data.audit.report import Report

ROWS = [
    {},
    {"reasoning_state": "null", "record_id": "r2"},
    {"finish_reason": "length"},
    {"status": "unreadable"},
]
NASTY = (
    "\x1b]0;x\x07\r\n::error file=a::b ##[command]c <script>alert(1)</script>"
    " [x](javascript:y) [bold]z[/] ]]> &amp; | `code` \u202e\x9b1m\x00\ufffe {0} %0A"
    " @org https://evil.example ../../a"
)


def hostile(text: str, rows: int = 2) -> Report:
    made = report(
        [{"reasoning_state": "null", "record_id": text, "finish_reason": text}] * rows,
        paths=(text,),
    )
    said = Diagnosis("wrong-field-read", text, (text,), text, ("CAP001",), rows, 1.0)
    return dataclasses.replace(
        made,
        diagnoses=(said,),
        notes=(text,),
        faults=(RuleFault("CAP001", "reasoning-missing", text),),
    )


def test_github_says_one_line_a_rule_with_its_first_place() -> None:
    assert render(report(ROWS, paths=("a,b:%.jsonl",)), "github").decode() == (
        "::error title=eagle3-data%3A CAP001 reasoning-missing,file=a%2Cb%3A%25.jsonl,line=2::"
        "1 record (25 %25), 1,000 tokens at stake; first at a,b:%25.jsonl:2\n"
        "::error title=eagle3-data%3A RAW001 bad-json,file=a%2Cb%3A%25.jsonl,line=4::"
        "1 record (25 %25), 1,000 tokens at stake; first at a,b:%25.jsonl:4\n"
        "::warning title=eagle3-data%3A GEN001 cut-by-length,file=a%2Cb%3A%25.jsonl,line=3::"
        "1 record (25 %25), 1,000 tokens at stake; first at a,b:%25.jsonl:3\n"
    )
    assert render(report([{}]), "github") == b""


def test_notes_stand_in_the_formats_of_a_ci() -> None:
    noted = dataclasses.replace(report([{}]), notes=("50 % is\nlost",))
    assert render(noted, "github") == b"::notice title=eagle3-data::50 %25 is\\nlost\n"
    (suite,) = ET.fromstring(render(noted, "junit"))
    assert [(child.tag, child.text) for child in suite][-1] == (
        "system-out",
        "note: 50 % is\\nlost",
    )


def test_json_lines_and_parquet_hold_every_finding() -> None:
    made = report([{"reasoning_state": "null", "record_id": f"r{n}"} for n in range(250)])
    lines = [json.loads(line) for line in render(made, "jsonl").splitlines()]
    assert [row["line"] for row in lines] == list(range(1, 251))
    assert lines[0] == {
        "file": "raw.jsonl",
        "code": "CAP001",
        "name": "reasoning-missing",
        "severity": "error",
        "line": 1,
        "offset": 0,
        "choice": 0,
        "turn": None,
        "record_id": "r0",
        "at": "/response/reasoning",
        "detail": "finish_reason stop, id r0",
        "tokens": 1000,
    }
    frame = pl.read_parquet(io.BytesIO(render(made, "parquet")))
    assert frame.columns == [*FINDINGS_SCHEMA, "file"]
    assert frame.drop("file").equals(made.findings)
    assert len(json.loads(render(made, "json"))["findings"]) == 100


def test_sarif_has_what_the_standard_demands() -> None:
    made = report(
        [{"reasoning_state": "null"}] * 50 + [{"status": "unreadable"}], paths=("a b.jsonl",)
    )
    log = json.loads(render(made, "sarif"))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["CAP001", "GEN001", "RAW001"]
    assert rules[0]["properties"] == {"occurrences": 50, "supervisedTokens": 50_000}
    assert rules[0]["help"]["text"].endswith("What to do: capture again.")
    results = run["results"]
    assert len(results) == 21  # 20 examples of 50, and the unreadable line
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"] == {"uri": "a%20b.jsonl", "index": 0}
        assert physical["region"]["startLine"] >= 1
    assert run["artifacts"] == [{"location": {"uri": "a%20b.jsonl"}, "length": 1234}]
    assert run["invocations"][0]["executionSuccessful"] is True
    assert run["invocations"][0]["exitCode"] == 1


def test_sarif_messages_escape_links_and_placeholders() -> None:
    log = json.loads(render(hostile("[a](1) {0} \\"), "sarif"))
    assert log["runs"][0]["results"][0]["message"]["text"] == (
        "reasoning-missing: finish_reason \\[a\\](1) {{0}} \\\\,"
        " id \\[a\\](1) {{0}} \\\\ (1,000 tokens)"
    )


def test_junit_has_a_case_a_rule() -> None:
    root = ET.fromstring(render(report(ROWS), "junit"))
    (suite,) = root
    assert dict(suite.attrib) == {
        "name": "eagle3-data",
        "tests": "4",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
        "time": "1.500",
    }
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("CAP001 reasoning-missing", ["failure"]),
        ("GEN001 cut-by-length", ["system-out"]),
        ("RAW001 bad-json", ["failure"]),
        ("TOK001 count-differs", ["skipped"]),
    ]
    broken = ET.fromstring(render(hostile("x"), "junit"))
    assert broken.get("errors") == "1"


def test_markdown_tables_and_headings() -> None:
    text = render(report(ROWS), "markdown").decode()
    assert text.startswith("## eagle3-data: faults in the data\n\n4 lines in = **2** kept +")
    assert (
        "| CAP001 | reasoning-missing | error | 1 | 25 % | 1,000 |"
        " <code>raw&#46;jsonl&#58;2</code> |"
    ) in text
    assert (
        "(interrupted: only a part was read)"
        in render(report([{}], partial=True), "markdown").decode()
    )


def test_html_is_one_page_that_asks_for_nothing() -> None:
    page = render(hostile(NASTY), "html").decode()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    tags = {"html", "head", "meta", "title", "style", "body", "pre"}
    assert set(re.findall(r"<([a-z]+)", page)) == tags


def check_inert(made: Report, text: str) -> None:
    for name in FORMATS:
        if name == "parquet":
            continue
        shown = render(made, name).decode()
        assert all(c == "\n" or c.isprintable() for c in shown), name
        if name in ("text", "markdown", "github", "html"):
            assert "##[" not in shown
            # a file named ":" gives ":: 1.2 kB": the runner obeys `::` only with a word behind it
            assert name == "github" or not re.search(r"(?m)^\s*::\w", shown)
    for line in render(made, "github").decode().splitlines():
        assert re.match(r"::(error|warning|notice) title=", line)
    json.loads(render(made, "json"))
    json.loads(render(made, "sarif"))
    ET.fromstring(render(made, "junit"))
    rows = [json.loads(line) for line in render(made, "jsonl").splitlines()]
    assert {row["record_id"] for row in rows} == {text}
    table = [
        line for line in render(made, "markdown").decode().split("\n") if line.startswith("| CAP")
    ]
    assert [line.count("|") for line in table] == [8]


def test_a_text_made_to_attack_has_no_force() -> None:
    check_inert(hostile(NASTY), NASTY)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.text(
        alphabet=st.one_of(
            st.characters(exclude_categories=["Cs"]),
            st.sampled_from(list("\x1b\x9b\x00\r\n:#[]<>|`{}%&\\\u202e\u2028\ufeff\uffff")),
        ),
        max_size=60,
    )
)
def test_no_format_holds_a_control_character(text: str) -> None:
    check_inert(hostile(text), text)


def test_a_file_name_that_is_no_utf8_is_told_in_every_format() -> None:
    made = report(ROWS, paths=("bad\udcff.jsonl",))
    for name in FORMATS:
        assert render(made, name)
    assert json.loads(render(made, "json"))["inputs"][0]["path"] == "bad\\udcff.jsonl"


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(KeyError):
        render(report([{}], RULES), "yaml")
