"""Write docs/engines.md from what the tests of tests/engines kept.

python engines/tables.py FOLDER        FOLDER: EAGLE3_ENGINE_RESULTS of a run of .ci/stages/engines

What enters: probes, checks and manifests as the commands printed them. What leaves: the page. It
promises to show them as they came out, addresses and temporary folders left out.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAMES = {"vllm": "vLLM", "llama.cpp": "llama.cpp", "transformers": "transformers serve"}
SETUPS = ("right parser", "no parser", "wrong parser", "thinking off")
HEAD = """# Real engines: what `probe` said, what `generate` stored

The target is the small real model `smollm2-think` (engines/make_smollm2.py) on a machine without a
GPU. It is erratic on purpose: it closes a thought as likely as it ends its turn. This page is made
by `engines/tables.py` from what the tests of `.ci/stages/engines` kept.
"""


def loaded(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def cleaned(text: str) -> str:
    """Without the folder of the run."""
    return re.sub(r"\S*/(?=[\w.]*(raw_responses|wrong_field)\.jsonl)", "", text)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


def probes(folder: Path, engine: str) -> list[str]:
    """The verdicts of every set-up, side by side, then what the parser's row said."""
    found = {s: loaded(folder / f"probe {engine} {s}.json") for s in SETUPS}
    version = found[SETUPS[0]]["server"]["version"]
    lines = ["", f"## {NAMES[engine]} {version or ''}".rstrip(), ""]
    lines += ["| check | " + " | ".join(SETUPS) + " |", "| --- |" + " --- |" * len(SETUPS)]
    for check in found[SETUPS[0]]["checks"]:
        row = []
        for setup in SETUPS:
            own = next(c for c in found[setup]["checks"] if c["name"] == check["name"])
            row.append("**bad**" if own["verdict"] == "bad" else own["verdict"])
        lines.append(f"| {check['name']} | " + " | ".join(row) + " |")
    row = ["1" if found[s]["faulty"] else "0" for s in SETUPS]
    lines += ["| exit code | " + " | ".join(row) + " |", ""]
    lines += ["| set-up | the row `parser` saw | and means |", "| --- | --- | --- |"]
    for setup in SETUPS:
        own = next(c for c in found[setup]["checks"] if c["name"] == "parser")
        lines.append(f"| {setup} | {cell(own['seen'])} | {cell(own['means'])} |")
    return lines


def capture(folder: Path, engine: str) -> list[str]:
    run = loaded(folder / f"generate {engine}.manifest.json")
    check = (folder / f"check {engine}.txt").read_text(encoding="utf-8")
    asked = run["rows"]["wanted"], run["rows"]["stored"], run["rows"]["failed"]
    lines = ["", "`generate`: {} prompts, {} rows stored, {} failed. `check`:".format(*asked), ""]
    return [*lines, "```text", cleaned(check).rstrip(), "```"]


def replay(folder: Path) -> list[str]:
    """The fault that this project began with."""
    check = (folder / "check wrong field.txt").read_text(encoding="utf-8")
    seen = loaded(folder / "probe vllm right parser.json")
    thought = next(c for c in seen["checks"] if c["name"] == "thought")
    return [
        "",
        "## The fault this project began with",
        "",
        "A client that reads `message.reasoning_content` (tests/engines/wrong_field.py) asked the"
        " vLLM above, right parser, 40 of the same prompts. No request failed and every row was"
        " written. `probe` says of that server, before a capture:",
        "",
        f"> {thought['verdict']}: {thought['seen']}. Means: {thought['means']}",
        "",
        "`check` says of the client's file, after it:",
        "",
        "```text",
        cleaned(check).rstrip(),
        "```",
        "",
        "`generate` stored the same prompts from the same server whole: see vLLM above.",
    ]


def page(folder: Path) -> str:
    lines = [HEAD.rstrip()]
    for engine in NAMES:
        if (folder / f"probe {engine} {SETUPS[0]}.json").exists():
            lines += probes(folder, engine)
            lines += capture(folder, engine)
    if (folder / "check wrong field.txt").exists():
        lines += replay(folder)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "engines.md").write_text(page(Path(sys.argv[1])), encoding="utf-8")
