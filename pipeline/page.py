"""docs/pipeline.md, from the results of a run: every number on it was measured by that run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.faults import FAULTS

HEAD = """# The whole road, run: `pipeline/run.py`

    pip install '.[torch,capture]' && engines/install vllm
    python pipeline/run.py OUT                                     # the road
    python pipeline/run.py OUT --faults --page docs/pipeline.md    # every planted fault too, and this page

A team trained a drafter for weeks, saw 15 % acceptance in its engine, and could say that it was the engine, because the data had been proven clean. This is that
story small enough for a laptop: SmolLM2-135M as the target, a real vLLM on the CPU, a drafter trained for minutes, held-out prompts. Then the drafter, the data and
the config are broken on purpose, one fault each, and the tools have to say whose fault it is. A run that is stopped goes on where it ended. The held-out prompts fill the
same five forms as those that were trained on, with other words: a drafter of minutes learns forms. The field that a client misread is replayed, with a thinking model, in
[engines.md](engines.md).

This page is made by the script; every number was measured by its run.
"""
STEPS = ("generate", "check", "convert", "vocab", "extract", "backends", "finetune", "evaluate")
STEPS += ("lint", "acceptance")


def page(done: Mapping[str, Any], cores: int) -> str:
    """The page."""
    parts = [HEAD, road(done, cores), agreement(done), splits(done)]
    if any(f"fault-{name}" in done for name in FAULTS):
        parts.append(planted(done))
    if {"fault-shifted", "fault-markers"} <= done.keys():
        parts.append(data(done))
    return "\n".join(parts)


def road(done: Mapping[str, Any], cores: int) -> str:
    """What each step made of what it got."""
    told = dict(zip(STEPS, outcomes(done), strict=True))
    whole = sum(done[name]["seconds"] for name in STEPS)
    rows = [[f"`{name}`", f"{done[name]['seconds']:.0f}", told[name]] for name in STEPS]
    title = f"## The road, {whole / 60:.0f} minutes on {cores} cores"
    return "\n".join([title, "", *table(["step", "seconds", "what came out"], rows), ""])


def outcomes(done: Mapping[str, Any]) -> Iterable[str]:
    """A sentence for each of `STEPS`."""
    said = {name: one["said"] for name, one in done.items() if "said" in one}
    ledger, rules = said["check"]["ledger"], said["check"]["rules"]
    grades = ", ".join(f"{one['count']} {one['grade']}" for one in said["check"]["grades"])
    asked, vocab, states = said["generate"], said["vocab"], said["extract"]["manifest"]
    train, backends = done["finetune"], done["backends"]
    engine = said["acceptance"].get("engine", {})
    fired = ", ".join(f"{rule['code']} {rule['count']}" for rule in rules) or "none"
    yield (
        f"{ledger['lines']} greedy answers of at most {asked['asked']['max_tokens']} tokens,"
        f" {asked['settings']['concurrency']} in flight, vLLM {engine.get('version', '')}"
    )
    yield (
        f"grades: {grades}; kept {ledger['kept']}, put apart {ledger['quarantined']}; rules that"
        f" fired: {fired}"
    )
    yield f"{vocab['samples']} samples, {vocab['supervised_tokens']:,} supervised tokens"
    yield (
        f"{vocab['size']:,} of {vocab['vocab_size']:,} ids; {vocab['distinct_tokens']:,} distinct"
        " ones were seen"
    )
    yield (
        f"{states['tokens']:,} tokens; the head finds {states['checked']['right']:,} of"
        f" {states['checked']['asked']:,} sampled tokens; files"
        f" {states['stored_bytes'] / states['raw_bytes']:.2f} of the raw bytes"
    )
    yield (
        f"vLLM's states of {backends['samples']} samples lie at most {backends['distance']} from"
        f" those of transformers (allowed: {backends['allowed']})"
    )
    yield (
        f"{train['steps']} steps, {train['tokens']:,} tokens; loss of the first draft"
        f" {train['loss'][0]} → {train['loss'][1]}"
    )
    walk = said["evaluate"]["walk"]
    low, high = walk["acceptance_length_interval"]
    yield (
        f"{said['evaluate']['samples']} held-out samples: acceptance length"
        f" {walk['acceptance_length']:.3f} ({low:.3f} to {high:.3f})"
    )
    yield ", ".join(
        f"{one['engine']}: loads {one['loads']}, right {one['right']}"
        for one in said["lint"]["engines"]
    )
    yield said["acceptance"]["verdict"]


def agreement(done: Mapping[str, Any]) -> str:
    """Engine and walk on the same ids."""
    said, offline = done["acceptance"]["said"], done["evaluate"]["said"]
    rows = [
        counts(
            "other held-out samples, all positions: too high", offline["all_positions_too_high"]
        ),
        counts("other held-out samples, walk", offline["walk"]),
        counts("walk on the ids that the live run returned", said["walk"]),
        counts("**live, vLLM**", said["live"]),
    ]
    apart = abs(said["live"]["acceptance_length"] - said["walk"]["acceptance_length"])
    most = max(abs(a - b) for a, b in zip(said["live"]["p"], said["walk"]["p"], strict=True))
    text = (
        f"On the same ids the two differ by {apart:.3f} in acceptance length and by at most"
        f" {most:.3f} in a P_k."
    )
    return "\n".join(["## Live and offline", "", *table(COUNTS, rows), "", text, ""])


def splits(done: Mapping[str, Any]) -> str:
    """What `evaluate` says of its samples by position, and what stopped the steps."""
    said = done["evaluate"]["said"]
    rows = [counts(name, one) for name, one in said["splits"]["bucket"].items()]
    causes = ", ".join(f"{name} {share:.1%}" for name, share in said["causes_of_rejection"].items())
    title = "`evaluate`, by the position in the answer where a step starts:"
    return "\n".join([title, "", *table(COUNTS, rows), "", f"What stopped a step: {causes}.", ""])


def planted(done: Mapping[str, Any]) -> str:
    """Faults of the drafter's files."""
    rows = []
    for name, fault in FAULTS.items():
        if (one := done.get(f"fault-{name}")) is None:
            continue
        said = one["said"]
        live = seen(said["live"]) if "live" in said else "none: dead at the first request"
        walk = seen(said["walk"]) if "walk" in said else "–"
        rows.append([fault.told, live, walk, linted(one), f"{said['verdict']}: {said['cause']}"])
    head = ["planted", "live: length, P_k", "walk on its ids", "`lint` for vLLM"]
    text = (
        "`lint` reads the files alone. `acceptance` has the engine's numbers, the target, and the"
        " layers that `finetune` noted."
    )
    lines = table([*head, "`acceptance` says"], rows)
    return "\n".join(["## The same drafter, broken on purpose", "", text, "", *lines, ""])


def linted(done: Mapping[str, Any]) -> str:
    """What lint says of this engine, and its codes."""
    said = done["lint"]["said"]
    codes = sorted({one["code"] for one in said["findings"]})
    (engine,) = said["engines"]
    return f"loads {engine['loads']}, right {engine['right']} ({', '.join(codes) or 'no rule'})"


def data(done: Mapping[str, Any]) -> str:
    """Faults of the data."""
    shifted, markers = done["fault-shifted"], done["fault-markers"]
    ledger = markers["check"]["said"]["ledger"]
    found = "; ".join(sorted({f"{one['code']} {one['detail']}" for one in shifted["findings"]}))
    live, sound = markers["said"]["live"], done["acceptance"]["said"]["live"]
    rows = [
        ["final states one row too late", f"`extract`, nothing is written: {found}", "–"],
        [
            "ids of a script that leaves the markers out",
            f"`check`: {', '.join(new_codes(done))}; {ledger['quarantined']} of {ledger['lines']}"
            " rows put apart",
            f"{seen(live)}, sound: {seen(sound)}",
        ],
    ]
    text = (
        f"The second drafter was trained on all rows that `check` had refused. `acceptance` says of"
        f" it: {markers['said']['verdict']}. An engine that does what the walk says has no fault of"
        " its own, however low the number: then it is the data."
    )
    lines = table(["planted", "named by", "live: length, P_k"], rows)
    return "\n".join(["## The data, broken on purpose", "", *lines, "", text, ""])


def new_codes(done: Mapping[str, Any]) -> list[str]:
    """Errors that `check` finds without the markers and not in the sound capture."""
    codes = [
        {rule["code"] for rule in report["rules"] if rule["severity"] == "error"}
        for report in (done["fault-markers"]["check"]["said"], done["check"]["said"])
    ]
    return sorted(codes[0] - codes[1])


COUNTS = ["", "P_1", "P_2", "P_3", "acceptance length", "steps"]


def counts(name: str, one: Mapping[str, Any]) -> list[str]:
    """A row of `COUNTS`."""
    p = [f"{value:.3f}" for value in one["p"]]
    return [name, *p, f"{one['acceptance_length']:.3f}", f"{one['steps']:,.0f}"]


def seen(one: Mapping[str, Any]) -> str:
    """Acceptance length and P_k in one cell."""
    p = " ".join(f"{value:.3f}" for value in one["p"])
    return f"{one['acceptance_length']:.3f}, {p}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    cells = [[cell.replace("|", "\\|").replace("<", "\\<") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]
