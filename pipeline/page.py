"""docs/pipeline.md, from the results of a run: every number on it was measured by that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.faults import FAULTS

HEAD = """# The whole road, run: `pipeline/run.py`

    pip install '.[torch,capture]' && engines/install vllm
    python pipeline/run.py OUT                                     # the road
    python pipeline/run.py OUT --faults --page docs/pipeline.md    # every planted fault too, and this page

A team trained a drafter for weeks, saw 15 % acceptance in its engine, and could say that it was the engine, because the data had been proven clean. This is that
story small enough for a laptop: SmolLM2-135M as the target, a real vLLM on the CPU, a drafter trained for minutes, held-out prompts. Then the drafter, the data and
the engine's config are broken on purpose, one fault each, and the tools have to say whose fault it is. Every number below was measured by the script; a run that is
killed goes on where it ended. The field that a client misread, with a thinking model, is replayed in [engines.md](engines.md).
"""


def page(done: Mapping[str, Any], cores: int) -> str:
    """The page."""
    parts = [HEAD, road(done, cores), agreement(done), splits(done)]
    if any(f"fault-{name}" in done for name in FAULTS):
        parts.append(planted(done))
    if "fault-markers" in done:
        parts.append(data(done))
    return "\n".join(parts)


def road(done: Mapping[str, Any], cores: int) -> str:
    """What each step made of what it got."""
    said = {name: one["said"] for name, one in done.items() if "said" in one}
    report, manifest = said["check"], said["extract"]["manifest"]
    ledger, codes = report["ledger"], [f"{r['code']} {r['count']}" for r in report["rules"]]
    grades = ", ".join(f"{one['count']} {one['grade']}" for one in report["grades"])
    vocab, checked, walk = said["vocab"], manifest["checked"], said["evaluate"]["walk"]
    train = done["finetune"]
    covered = vocab["coverage"][0]["coverage"]
    rows = [
        ("generate", f"{ledger['lines']} answers of at most 128 tokens, greedy, 64 in flight"),
        (
            "check",
            f"grades: {grades}; kept {ledger['kept']}, put apart {ledger['quarantined']}"
            f" (rules that fired: {', '.join(codes)})",
        ),
        (
            "convert",
            f"{vocab['samples']} samples, {vocab['supervised_tokens']:,} supervised tokens",
        ),
        (
            "vocab",
            f"8,000 of {vocab['vocab_size']:,}; {vocab['distinct_tokens']:,} distinct ids"
            f" seen, coverage {covered:.4f}",
        ),
        (
            "extract",
            f"{manifest['tokens']:,} tokens; the head finds {checked['right']:,} of"
            f" {checked['asked']:,} sampled tokens; files"
            f" {manifest['stored_bytes'] / manifest['raw_bytes']:.2f} of raw bytes",
        ),
        (
            "backends",
            f"vLLM's states of {done['backends']['samples']} samples lie at most"
            f" {done['backends']['distance']} from those of transformers (allowed"
            f" {done['backends']['allowed']})",
        ),
        (
            "finetune",
            f"{train['tokens']:,} tokens in {train['said']['last']['step']} steps; loss of the"
            f" first draft {train['loss'][0]} → {train['loss'][1]}",
        ),
        (
            "evaluate",
            f"{said['evaluate']['samples']} held-out samples, acceptance length"
            f" {walk['acceptance_length']:.3f}",
        ),
        (
            "lint",
            "vLLM: "
            + "; ".join(
                f"loads {one['loads']}, right {one['right']}" for one in said["lint"]["engines"]
            ),
        ),
        ("acceptance", said["acceptance"]["verdict"]),
    ]
    whole = sum(done[name]["seconds"] for name, _ in rows)
    lines = [
        f"\n## The road, {whole / 60:.0f} minutes on {cores} cores\n",
        "| step | seconds | what came out |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {done[name]['seconds']:.0f} | {cell(what)} |" for name, what in rows]
    return "\n".join(lines) + "\n"


def agreement(done: Mapping[str, Any]) -> str:
    """Engine and walk on the same ids."""
    said, offline = done["acceptance"]["said"], done["evaluate"]["said"]
    rows = [
        (
            "offline, other held-out samples: all positions (too high)",
            offline["all_positions_too_high"],
        ),
        ("offline, other held-out samples: walk", offline["walk"]),
        ("walk on the ids that the live run returned", said["walk"]),
        ("**live, vLLM**", said["live"]),
    ]
    apart = abs(said["live"]["acceptance_length"] - said["walk"]["acceptance_length"])
    most = max(abs(a - b) for a, b in zip(said["live"]["p"], said["walk"]["p"], strict=True))
    lines = [
        "## Live and offline\n",
        "| | P_1 | P_2 | P_3 | acceptance length | steps |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {triple(one)} | {one['acceptance_length']:.3f} | {one['steps']:,.0f} |"
        for name, one in rows
    ]
    lines.append(
        f"\nOn the same ids the two differ by {apart:.3f} in acceptance length and by at"
        f" most {most:.3f} in a P_k.\n"
    )
    return "\n".join(lines)


def splits(done: Mapping[str, Any]) -> str:
    """What `evaluate` says of the held-out samples, by position, and what stopped the steps."""
    said = done["evaluate"]["said"]
    lines = [
        "Offline, by the position in the answer where a step starts:\n",
        "| position | P_1 | P_2 | P_3 | acceptance length | steps |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {triple(one)} | {one['acceptance_length']:.3f} | {one['steps']:,.0f} |"
        for name, one in said["splits"]["bucket"].items()
    ]
    causes = ", ".join(f"{name} {share:.1%}" for name, share in said["causes_of_rejection"].items())
    return "\n".join([*lines, f"\nWhat stopped a step first: {causes}.\n"])


def planted(done: Mapping[str, Any]) -> str:
    """Faults of the drafter's files."""
    lines = [
        "## The same drafter, broken on purpose\n",
        "`lint` reads the files alone and may know nothing of how the drafter was trained; `acceptance` has the engine's numbers.\n",
        "| planted | live: length, P_1 P_2 P_3 | emulated | `lint` for vLLM | `acceptance` says |",
        "|---|---|---|---|---|",
    ]
    for name, fault in FAULTS.items():
        one = done.get(f"fault-{name}")
        if one is None:
            continue
        said, found = one["said"], one["lint"]["said"]["findings"]
        codes = ", ".join(sorted({f["code"] for f in found if f["severity"] == "error"}))
        notes = ", ".join(sorted({f["code"] for f in found if f["severity"] != "error"}))
        linted = codes or (f"warns: {notes}" if notes else "nothing")
        live = said.get("live")
        seen = (
            f"{live['acceptance_length']:.3f}, {triple(live, ' ')}"
            if live
            else "HTTP 500 at the first request"
        )
        names = {e["name"]: e["acceptance_length"] for e in said.get("emulations") or []}
        emulated = names.get(said.get("cause") or "")
        told = f"{emulated:.3f}" if emulated else "–"
        cause = said.get("cause") or ""
        lines.append(
            f"| {fault.told} | {seen} | {told} | {linted} | {cell(said['verdict'])}"
            f"{': ' + cell(cause) if cause else ''} |"
        )
    return "\n".join(lines) + "\n"


def data(done: Mapping[str, Any]) -> str:
    """Faults of the data."""
    shifted, markers = done["fault-shifted"], done["fault-markers"]
    found = "; ".join(f"{one['code']}: {one['detail']}" for one in shifted["findings"])
    report = markers["check"]["said"]
    errors = sorted({r["code"] for r in report["rules"] if r["severity"] == "error"})
    live, sound = markers["said"]["live"], done["acceptance"]["said"]["live"]
    return "\n".join(
        [
            "## The data, broken on purpose\n",
            "| planted | who names it | live: length, P_1 P_2 P_3 |",
            "|---|---|---|",
            f"| final states one row too late | `extract` stops before a file is written: {cell(found)} | nothing to train on |",
            f"| ids of a script that leaves the markers out | `check`: {report['ledger']['quarantined']} of {report['ledger']['lines']} rows put apart, {', '.join(errors)} |"
            f" {live['acceptance_length']:.3f}, {triple(live, ' ')} (sound: {sound['acceptance_length']:.3f}) |",
            f"\nThe second drafter was trained in the same way as the sound one, on the rows that `check` refuses; `acceptance` then says: {markers['said']['verdict']}."
            " Engine and walk agree on a bad drafter: that is how one knows that it is the data.\n",
        ]
    )


def triple(one: Mapping[str, Any], between: str = " | ") -> str:
    return between.join(f"{value:.3f}" for value in one["p"])


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")
