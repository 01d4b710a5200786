"""Which request turns thinking on or off: only the switch that the family's template reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eagle3_data import check
from eagle3_data.profiles.load import load
from eagle3_data.profiles.thinking import thinking_on
from eagle3_data.records.table import RECORD_SCHEMA


def on(profile: str, shown: bool = False, **cells: Any) -> bool:
    row = dict.fromkeys(RECORD_SCHEMA) | {"server": "vllm"} | cells
    made = pl.DataFrame([row], schema=RECORD_SCHEMA).select(thinking_on(load(profile), shown=shown))
    return bool(made.item())


@pytest.mark.parametrize(
    ("profile", "kwargs", "expected"),
    [
        ("kimi-k2.5", None, True),
        ("kimi-k2.5", {"thinking": False}, False),
        ("kimi-k2.5", {"thinking": True}, True),
        ("kimi-k2.5", {"enable_thinking": False}, True),
        ("kimi-k2.5", {"thinking": None}, True),
        ("qwen3-hybrid", {"enable_thinking": False}, False),
        ("qwen3-hybrid", {"thinking": False}, True),
        ("deepseek-v3.1", None, False),
        ("deepseek-v3.1", {"thinking": True}, True),
        ("deepseek-v3.1", {"enable_thinking": True}, False),
        ("seed-oss", {"thinking_budget": 0}, False),
        ("seed-oss", {"thinking_budget": 512}, True),
        ("seed-oss", {"thinking_budget": -1}, True),
        ("seed-oss", {"enable_thinking": False}, True),
        ("kimi-k2-thinking", {"thinking": False}, True),
        ("kimi-k2-instruct", {"thinking": True}, False),
    ],
)
def test_the_familys_own_switch_decides(profile: str, kwargs: Any, expected: bool) -> None:
    text = json.dumps(kwargs) if kwargs else None
    for asked in (True, False):  # of no weight where the family has a switch
        made = on(profile, thinking_asked=asked, template_kwargs_json=text)
        assert made is expected


@pytest.mark.parametrize(
    ("server", "settings", "expected"),
    [
        (None, {"thinking": {"type": "disabled"}}, False),
        ("moonshot", {"thinking": {"type": "disabled"}}, False),
        (None, {"extra_body": {"thinking": {"type": "enabled"}}}, True),
        (None, {"extra_body": {"thinking": False}}, False),
        (None, {"enable_thinking": False}, True),
        ("vllm", {"thinking": False}, True),
        ("sglang", {"thinking": {"type": "disabled"}}, True),
    ],
)
def test_a_models_own_api_holds_the_switch_as_a_setting(
    server: str | None, settings: Any, expected: bool
) -> None:
    text = json.dumps(settings, separators=(",", ":"))
    assert on("kimi-k2.5", server=server, settings_json=text) is expected


def test_a_family_without_a_switch_is_taken_by_the_usual_ones() -> None:
    assert on("generic", shown=True) and not on("generic", shown=False)
    assert on("generic", thinking_asked=True) and not on("generic", True, thinking_asked=False)
    assert not on("magistral", thinking_asked=False)


@pytest.mark.parametrize(
    ("profile", "kwargs", "missing"),
    [
        ("kimi-k2.5", {"enable_thinking": False}, 3),
        ("kimi-k2.5", {"thinking": False}, 0),
        ("seed-oss", {"thinking_budget": 0}, 0),
        ("seed-oss", {}, 3),
    ],
)
def test_a_lost_thought_is_told_whatever_else_was_asked(
    profile: str, kwargs: Any, missing: int, tmp_path: Path
) -> None:
    rows = [
        {
            "request": {
                "messages": [{"role": "user", "content": f"How much is {i} + {i}?"}],
                "chat_template_kwargs": kwargs,
            },
            "response": {
                "system_fingerprint": "vllm-0.33.0",
                "choices": [
                    {
                        "message": {"content": f"It is {2 * i}.", "reasoning": None},
                        "finish_reason": "stop",
                    }
                ],
            },
        }
        for i in range(3)
    ]
    data = tmp_path / "raw_responses.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = check([data], profile=profile, workers=1)
    assert report.findings.filter(code="CAP001").height == missing
