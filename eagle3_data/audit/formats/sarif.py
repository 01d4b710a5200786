"""The report as SARIF 2.1.0 (OASIS), for code-scanning views: the rules with their help, capped
examples, exact counts.

Messages escape what SARIF gives a meaning: brackets (embedded links, 3.11.6) and braces
(placeholders, 3.11.5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
import polars as pl

from eagle3_data.audit.formats.text import count_of
from eagle3_data.audit.inert import inert, inert_json

if TYPE_CHECKING:
    from eagle3_data.audit.report import Report

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
EXAMPLES = 20
LEVELS = {"error": "error", "warn": "warning"}


def report_sarif(report: Report) -> bytes:
    """UTF-8 JSON with one run. At most EXAMPLES results a rule; `occurrences` in the rule's
    properties is exact.
    """
    counts = {row["code"]: row for row in report.rules.iter_rows(named=True)}
    known = {rule.code: rule for rule in report.rules_run}
    rules: list[dict[str, Any]] = []
    for code in sorted(known.keys() | counts.keys()):
        row, rule = counts.get(code), known.get(code)
        name = rule.name if rule else counts[code]["name"]
        severity = row["severity"] if row else rule.severity.value if rule else "warn"
        entry: dict[str, Any] = {
            "id": code,
            "name": name,
            "defaultConfiguration": {"level": LEVELS.get(severity, "none")},
            "properties": {
                "occurrences": row["count"] if row else 0,
                "supervisedTokens": row["tokens"] if row else None,
            },
        }
        if rule is not None:
            entry["shortDescription"] = {"text": _message(rule.summary)}
            entry["fullDescription"] = {"text": _message(rule.docs, lines=True)}
            entry["help"] = {"text": _message(rule.docs, lines=True)}
        rules.append(entry)
    index = {entry["id"]: number for number, entry in enumerate(rules)}
    shown = report.findings.filter(pl.int_range(pl.len()).over("code") < EXAMPLES)
    run = {
        "tool": {
            "driver": {
                "name": "eagle3-data",
                "version": report.versions.get("eagle3-data", "0"),
                "rules": rules,
            }
        },
        "invocations": [
            {
                "executionSuccessful": not report.faults and not report.partial,
                "exitCode": report.exit_code,
                "toolExecutionNotifications": [
                    {
                        "level": "error",
                        "descriptor": {"id": fault.code},
                        "message": {
                            "text": _message(f"{fault.name} could not be run: {fault.error}")
                        },
                    }
                    for fault in report.faults
                ],
            }
        ],
        "artifacts": [
            {"location": {"uri": _uri(facts.path)}, "length": facts.bytes}
            for facts in report.inputs
        ],
        "columnKind": "unicodeCodePoints",
        "results": [
            _result(report, finding, index[finding["code"]])
            for finding in shown.iter_rows(named=True)
        ],
        "properties": {
            "ledger": report.to_dict(examples=0)["ledger"],
            "partial": report.partial,
            "diagnoses": [
                {
                    "name": d.name,
                    "title": inert(d.title),
                    "evidence": [inert(fact) for fact in d.evidence],
                    "nextStep": inert(d.next_step),
                    "codes": list(d.codes),
                    "records": d.records,
                }
                for d in report.diagnoses
            ],
        },
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return inert_json(orjson.dumps(log, option=orjson.OPT_INDENT_2).decode()).encode() + b"\n"


def _result(report: Report, finding: dict[str, Any], index: int) -> dict[str, Any]:
    text = finding["name"] + (f": {finding['detail']}" if finding["detail"] else "")
    if finding["tokens"]:
        text += f" ({count_of(finding['tokens'], 'token')})"
    result: dict[str, Any] = {
        "ruleId": finding["code"],
        "ruleIndex": index,
        "level": LEVELS.get(finding["severity"], "none"),
        "message": {"text": _message(text)},
    }
    number = finding["file_no"]
    if number is not None and 0 <= number < len(report.inputs):
        physical: dict[str, Any] = {
            "artifactLocation": {"uri": _uri(report.inputs[number].path), "index": number}
        }
        if finding["line"] is not None:
            physical["region"] = {"startLine": finding["line"]}
        location: dict[str, Any] = {"physicalLocation": physical}
        if finding["at"]:
            location["logicalLocations"] = [{"fullyQualifiedName": inert(finding["at"])}]
        result["locations"] = [location]
    result["properties"] = {
        key: finding[key] for key in ("offset", "choice", "turn") if finding[key] is not None
    }
    if finding["record_id"] is not None:
        result["properties"]["recordId"] = inert(finding["record_id"], 200)
    return result


def _uri(path: str) -> str:
    return quote(path.encode("utf-8", "surrogateescape"), safe="/-._~")


def _message(text: str, *, lines: bool = False) -> str:
    shown = "\n".join(inert(t) for t in text.split("\n")) if lines else inert(text, 1000)
    for mark in ("\\", "[", "]"):
        shown = shown.replace(mark, "\\" + mark)
    return shown.replace("{", "{{").replace("}", "}}")
