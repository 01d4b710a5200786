"""The numbers of a real drafter in docs/evaluate.md: walks it, and writes the table there.

    python benchmarks/drafter.py DRAFT STATES "what target, what text"

DRAFT is what `finetune` left (its training/ folder too), STATES holds the split val. Only the block
between the two comments in the page is changed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from eagle3_data.draft.checkpoint import load
from eagle3_data.draft.evaluate import evaluate
from eagle3_data.draft.states import open_states
from eagle3_data.draft.target import target_of
from eagle3_data.draft.walk import Counts

PAGE = Path(__file__).parent.parent / "docs" / "evaluate.md"
START, END = "<!-- made by benchmarks/drafter.py -->", "<!-- end -->"


def row(name: str, counts: Counts) -> str:
    """A line of the table."""
    interval = counts.length_interval
    told = f" ({interval[0]:.3f} to {interval[1]:.3f})" if interval else ""
    p = " | ".join(f"{value:.3f}" for value in counts.p)
    return f"| {name} | {p} | {counts.length:.3f}{told} | {counts.steps:,.0f} |"


def table(draft: Path, folder: Path, what: str) -> str:
    """The block of the page."""
    states = open_states(folder)
    target = target_of(states.manifest, None)
    found = evaluate(load(draft, target), states.where(split="val"), target)
    lines = (draft / "training" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    tokens, epochs = sum(one["tokens"] for one in rows), rows[-1]["epoch"] + 1
    trained = states.where(split="train").index
    out = [
        f"{what}. Trained on {len(trained):,} samples, {epochs} epochs, {len(rows):,} optimizer"
        f" steps, {tokens:,} tokens; loss of the first draft {rows[0]['loss'][0]:.2f} →"
        f" {rows[-1]['loss'][0]:.2f}. Held out: {found.samples:,} samples, {found.tokens:,} sampled"
        " tokens.",
        "",
        "| | P_1 | P_2 | P_3 | acceptance length (95 %) | steps |",
        "|---|---|---|---|---|---|",
        row("**walk, as an engine counts**", found.walk),
        row("all positions: too high", found.every),
        row("first step after prefill", found.after_prefill),
    ]
    for name in ("kind", "bucket"):
        out += [row(value, counts) for value, counts in found.splits[name].items()]
    causes = ", ".join(f"{name} {share:.1%}" for name, share in found.causes.items())
    return "\n".join([*out, "", f"What stopped a step first: {causes}."])


def main() -> int:
    if len(sys.argv) != 4:
        sys.exit((__doc__ or "").strip())
    made = table(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    print(made)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{made}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
