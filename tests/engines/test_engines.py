"""vLLM, llama.cpp and `transformers serve`: what `probe` says of each, what `generate` stores."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from room import PROMPTS, SLOW_S, TOKENIZER, Rack, command, keep

from engines.serve import Engine, Setup, home

VERSIONS = {Engine.VLLM: "0.32.0", Engine.LLAMACPP: "b11434-sdist", Engine.TRANSFORMERS: None}
FIELDS = {
    Engine.VLLM: "reasoning",
    Engine.LLAMACPP: "reasoning_content",
    Engine.TRANSFORMERS: "reasoning_content",
}
IDS = {
    Engine.VLLM: {"return_token_ids": True},
    Engine.LLAMACPP: {
        "verbose": True,
        "return_tokens": True,
        "response_fields": ["tokens", "prompt"],
    },
    Engine.TRANSFORMERS: {},
}
MAX_TOKENS = {Engine.VLLM: 64, Engine.LLAMACPP: 64, Engine.TRANSFORMERS: 24}
"""transformers serve answers one request at a time."""


@dataclass(frozen=True)
class Verdict:
    """What `probe` must say: which checks are bad, and of the parser in words."""

    bad: list[str]
    parser: str


LOST = ["thought", "parser", "markers"]
VERDICTS: dict[Engine, dict[Setup, Verdict]] = {
    Engine.VLLM: {
        Setup.NONE: Verdict(LOST, "no parser: this vLLM counts reasoning tokens whenever it runs"),
        Setup.WRONG: Verdict(LOST, "wrong parser: one is at work and does not see"),
        Setup.OFF: Verdict(["thought", "parser"], "this parser takes every text for a thought"),
        Setup.RIGHT: Verdict([], "right parser"),
    },
    Engine.LLAMACPP: {
        Setup.NONE: Verdict(LOST, "no parser: llama-server hands on all that it sampled"),
        # another family's template: the prompt differs too
        Setup.WRONG: Verdict(
            ["parser", "markers", "prompt"],
            "wrong parser: it leaves the closing marker and the answer inside the thought",
        ),
        Setup.OFF: Verdict(["thought"], "nothing to part: thinking is off"),
        Setup.RIGHT: Verdict([], "right parser"),
    },
    Engine.TRANSFORMERS: {
        Setup.NONE: Verdict(LOST, "no parser, or one that does not see"),
        Setup.WRONG: Verdict(LOST, "wrong parser: it hands on the opening marker"),
        Setup.OFF: Verdict(["thought"], "nothing to part: thinking is off"),
        Setup.RIGHT: Verdict([], "right parser"),
    },
}


@pytest.mark.parametrize("setup", [Setup.NONE, Setup.WRONG, Setup.OFF, Setup.RIGHT], ids=str)
def test_probe_says_what_a_capture_would_hold(engine: Engine, setup: Setup, rack: Rack) -> None:
    server = rack.server(engine, setup)
    asked = ("probe", "--base-url", server.base_url, "--tokenizer", TOKENIZER, "--timeout", SLOW_S)
    ran = command(*asked, "--json")
    assert ran.code in (0, 1), ran.stderr
    found = ran.json
    keep(f"probe {engine} {setup}.json", ran.stdout)

    checks = {check["name"]: check for check in found["checks"]}
    expected = VERDICTS[engine][setup]
    assert [n for n, check in checks.items() if check["verdict"] == "bad"] == expected.bad, checks
    assert expected.parser in checks["parser"]["means"]
    assert ran.code == (1 if expected.bad else 0)
    assert found["faulty"] is bool(expected.bad)
    assert (found["server"]["kind"], found["server"]["version"]) == (engine, VERSIONS[engine])
    assert found["ids_body"] == IDS[engine]
    if setup is Setup.RIGHT:
        assert found["thought_field"] == FIELDS[engine]


def test_generate_captures_a_hundred_prompts(engine: Engine, rack: Rack, tmp_path: Path) -> None:
    server, out = rack.server(engine, Setup.RIGHT), tmp_path / "raw_responses.jsonl"
    sampling = ("--temperature", 0.7, "--top-p", 0.95, "--seed", 1)
    ran = command(
        *("generate", PROMPTS, "-o", out, "--base-url", server.base_url, "--limit", 100),
        *("--tokenizer", TOKENIZER, "--max-tokens", MAX_TOKENS[engine], *sampling),
        *("--timeout", SLOW_S, "--no-probe"),  # the test above has asked it all
    )
    assert ran.code == 0, ran.stderr
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    manifest = json.loads((tmp_path / "raw_responses.manifest.json").read_bytes())
    keep(f"generate {engine}.jsonl", out)
    keep(f"generate {engine}.manifest.json", tmp_path / "raw_responses.manifest.json")

    wanted = [json.loads(line)["id"] for line in PROMPTS.read_bytes().splitlines()[:100]]
    assert sorted(row["id"] for row in rows) == sorted(wanted)
    assert len({row["identity"] for row in rows}) == 100
    assert {row["server"] for row in rows} == {str(engine)}
    assert manifest["complete"] is True
    assert manifest["rows"]["stored"] == 100
    assert manifest["rows"]["failed"] == 0

    checked = command("check", out, "--tokenizer", TOKENIZER, "--json")
    keep(f"check {engine}.json", checked.stdout)
    keep(f"check {engine}.txt", command("check", out, "--tokenizer", TOKENIZER, "--quiet").stdout)
    assert checked.code in (0, 1), checked.stderr
    grades = {row["grade"]: row["count"] for row in checked.json["grades"]}
    if IDS[engine]:
        assert grades == {"A": 100}
    else:
        # without ids nothing is exact; measured: 81 B, 17 ambiguous and 2 contradicted by the count
        assert set(grades) <= {"B", "E"}
        assert grades["B"] >= 70, grades
    assert "CAP001" not in {rule["code"] for rule in checked.json["rules"]}


@pytest.mark.parametrize("engine", [Engine.VLLM], indirect=True, ids=str)
def test_a_client_that_reads_the_wrong_field_is_found_out_before_and_after(
    engine: Engine, rack: Rack, tmp_path: Path
) -> None:
    """The fault this project began with, beside a test that passes on the same server."""
    server, out = rack.server(engine, Setup.RIGHT), tmp_path / "wrong_field.jsonl"
    script = Path(__file__).with_name("wrong_field.py")
    subprocess.run(
        [sys.executable, script, server.base_url, PROMPTS, out, "40", "64"],
        check=True,
        timeout=SLOW_S,
    )
    rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [row["messages"][-1]["reasoning_content"] for row in rows] == [None] * 40
    keep("wrong field.jsonl", out)
    # its rows do not name the model, so that the family has to be said
    call = ("check", out, "--tokenizer", TOKENIZER, "--profile", "smollm2-think")
    keep("check wrong field.txt", command(*call, "--quiet").stdout)

    checked = command(*call, "--json")
    assert checked.code == 1
    assert [d["name"] for d in checked.json["diagnoses"]] == ["wrong-field-read"]
    found = {rule["code"]: rule["count"] for rule in checked.json["rules"]}
    assert found["CAP001"] == 40


def test_the_models_tokenizer_is_the_one_of_the_fixtures(engine: Engine) -> None:
    made = (home() / "models" / "smollm2-think" / "tokenizer.json").read_bytes()
    assert json.loads(made) == json.loads((TOKENIZER / "tokenizer.json").read_bytes())
