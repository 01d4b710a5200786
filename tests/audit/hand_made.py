"""Small record tables, rules and reports for the tests of judge, diagnose, report and formats."""

from __future__ import annotations

from typing import Any

import polars as pl

from eagle3_data.audit.columns import LIGHT_SCHEMA
from eagle3_data.audit.judge import finish, judge, merge
from eagle3_data.audit.report import ProfileFacts, Report, RuleNotRun, TokenizerFacts, write_up
from eagle3_data.audit.rules.registry import Columns, Rule, Severity
from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.profiles.profile import Completion, Marker, Profile, Prompt, Thinking
from eagle3_data.records.table import RECORD_SCHEMA
from eagle3_data.tokens.samples import SAMPLE_COLUMNS

SCHEMA = RECORD_SCHEMA | SAMPLE_COLUMNS | LIGHT_SCHEMA

PROFILE = Profile(
    name="think-demo",
    title="Demo",
    thinking=Thinking.ALWAYS,
    think_open=Marker(text="<think>"),
    think_close=Marker(text="</think>"),
    open_in_prompt=True,
    end_of_turn=(Marker(text="<|im_end|>"),),
    prompt=Prompt(thinking_on="<think>\n"),
    completion=Completion(thinking_off="{content}<|im_end|>"),
    vllm_reasoning_parser="deepseek_r1",
    sglang_reasoning_parser="deepseek-r1",
)


def records(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """A frame with every column; a row says only what differs from a plain good record."""
    plain = {
        "file_no": 0,
        "choice": 0,
        "status": "record",
        "notes": 0,
        "shape": "chat-completion",
        "thinking_on": True,
        "reasoning_state": "text",
        "reasoning_key": "reasoning",
        "reasoning_keys": "reasoning=text",
        "reasoning_chars": 3000,
        "content_chars": 900,
        "finish_reason": "stop",
        "completion_tokens": 1000,
        "max_tokens": 4096,
    }
    full = [{"line": n, "offset": (n - 1) * 100, **plain, **row} for n, row in enumerate(rows, 1)]
    return pl.DataFrame(
        {name: [row.get(name) for row in full] for name in SCHEMA}, schema=SCHEMA, strict=True
    )


def no_thought(r: Columns) -> pl.Expr:
    return r.thinking_on & (r.reasoning_state != "text")


def cut(r: Columns) -> pl.Expr:
    return r.finish_reason == "length"


def unreadable(r: Columns) -> pl.Expr:
    return r.status == "unreadable"


MISSING = Rule(
    "CAP001",
    "reasoning-missing",
    Severity.ERROR,
    "/response/reasoning",
    no_thought,
    "The model thinks, but the record holds no reasoning.\n\nWhat to do: capture again.",
    detail=lambda r: pl.format("finish_reason {}, id {}", r.finish_reason, r.record_id),
)
CUT = Rule("GEN001", "cut-by-length", Severity.WARN, "", cut, "The answer was cut.")
BAD_JSON = Rule("RAW001", "bad-json", Severity.ERROR, "", unreadable, "The line is not JSON.")
RULES = (MISSING, CUT, BAD_JSON)


def report(
    rows: list[dict[str, Any]],
    rules: tuple[Rule, ...] = RULES,
    *,
    paths: tuple[str, ...] = ("raw.jsonl",),
    tokenizer: TokenizerFacts | None = None,
    **facts: Any,
) -> Report:
    """The report of one batch."""
    outcome = finish(merge([judge(records(rows), rules, Thresholds())]))
    return write_up(
        outcome,
        paths=paths,
        sizes=[1234] * len(paths),
        profile=ProfileFacts("think-demo", "given", "f" * 12),
        tokenizer=tokenizer,
        rules_run=rules,
        rules_not_run=(RuleNotRun("TOK001", "count-differs", "needs a tokenizer"),),
        versions={"eagle3-data": "0.1.0"},
        seconds=1.5,
        **facts,
    )
