"""The whole road with a real small target and a real engine, on a machine without a GPU.

    python pipeline/run.py OUT                     the road: under half an hour on two cores
    python pipeline/run.py OUT --faults            then every planted fault, live: half an hour more
    python pipeline/run.py OUT --page docs/pipeline.md

Needs `pip install '.[torch,capture]'` and `engines/install vllm`. What enters: prompts that
pipeline/prompts.py makes, SmolLM2-135M. What leaves in OUT: the capture, shards, mapping, states,
drafter, and results/ with what each step said. A step that is done is not done again. Exit 0: the
engine does what the walk says and accepts enough; 1: not, and what is missed is said.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from engines import serve
from pipeline.faults import FAULTS, Fault, planted, shifted, without_markers
from pipeline.page import new_codes, page
from pipeline.prompts import prompts
from pipeline.room import MODEL, Failed, Room, say

DRAFTS = 3
MAX_TOKENS = 128
DRAFT_VOCABULARY = 8000
IN_FLIGHT = 64
"""Measured on two cores: 231 tokens/s with 16 requests in flight, 363 with 32, 438 with 64."""
BACKENDS_COMPARED = 40
"""Samples that vLLM extracts too."""
LENGTH_APART, P_APART, LEAST = 0.03, 0.02, 1.9


@dataclass(frozen=True, slots=True)
class Road:
    """The steps in their order; each leaves what the next one reads."""

    room: Room
    rows: int
    held_out: int
    epochs: int

    @property
    def target(self) -> Path:
        return serve.home() / "models" / MODEL

    @property
    def of(self) -> list[object]:
        """Options that say whose ids they are."""
        return ["--tokenizer", self.target, "--profile", "chatml"]

    def at(self, name: str) -> Path:
        """A file or folder of the run."""
        return self.room.out / name

    def walk(self) -> None:
        """All of it."""
        room = self.room
        room.step("generate", self.generate, "answers of vLLM, greedy, with their ids")
        room.step("check", self.check, "audit of the capture")
        room.step("convert", self.convert, "shards")
        room.step("vocab", self.vocab, "draft vocabulary")
        room.step("extract", self.extract, "hidden states, by transformers")
        room.step("backends", self.backends, "hidden states of the first samples, by vLLM")
        room.step("finetune", self.finetune, "training")
        room.step("evaluate", self.evaluate, "offline acceptance on held-out samples")
        room.step("lint", self.lint, "the drafter's files")
        room.step(
            "acceptance",
            lambda: self.acceptance("acceptance", self.at("drafter")),
            "the drafter in vLLM, held-out prompts",
        )

    def generate(self) -> dict[str, Any]:
        captured, held_out = prompts(self.rows, self.held_out)
        for name, rows in (("prompts", captured), ("held-out", held_out)):
            text = "".join(json.dumps(row) + "\n" for row in rows)
            self.at(f"{name}.jsonl").write_text(text, encoding="utf-8")
        out = self.at("raw_responses.jsonl")
        options: list[object] = ["--temperature", 0, "--max-tokens", MAX_TOKENS]
        options += ["--concurrency", IN_FLIGHT]
        options += ["--profile", "chatml", *(["--resume"] if out.exists() else [])]
        with self.room.served("generate", ["--max-num-seqs", str(IN_FLIGHT)]) as server:
            where = ["-o", out, "--base-url", server.base_url]
            return self.room.json(
                "generate", "generate", self.at("prompts.jsonl"), *where, *options
            )

    def check(self) -> dict[str, Any]:
        report = self.at("results") / "report"
        checked = ["check", self.at("raw_responses.jsonl"), *self.of]
        checked += ["-o", f"json={report}", "--overwrite"]
        # 1: some answers of so small a model run in circles, and are put apart
        code, _ = self.room.command("check", checked, codes=(0, 1))
        return {"exit_code": code, "said": json.loads(report.read_text(encoding="utf-8"))}

    def convert(self) -> dict[str, Any]:
        out = ["-o", self.at("shards"), "--split", "train=0.9,val=0.1"]
        read = [self.at("raw_responses.jsonl"), *self.of]
        return self.room.json("convert", "convert", *read, *out, codes=(0, 1))

    def vocab(self) -> dict[str, Any]:
        out = ["-o", self.at("mapping"), "--size", DRAFT_VOCABULARY, "--overwrite"]
        return self.room.json("vocab", "vocab", self.at("shards"), *out)

    def extract(self) -> dict[str, Any]:
        made = [self.at("shards"), "--target", self.target, "-o", self.at("states")]
        return self.room.json("extract", "extract", *made)

    def backends(self) -> dict[str, Any]:
        """vLLM's states of the same ids, and how far they lie from those of transformers."""
        from eagle3_data.draft.selfcheck import TOLERANCE, furthest
        from eagle3_data.draft.states import open_states

        ours = open_states(self.at("states"))
        layers = ours.manifest.identity.layers
        place = self.at("vllm-room")
        place.mkdir(exist_ok=True)
        count = ours.manifest.identity.target.layers
        with self.room.served("backends", serve.extracting([*layers.vllm, count], place)) as server:
            found = self.room.json(
                "backends",
                *("extract", self.at("shards"), "--target", self.target),
                *("-o", self.at("states-vllm"), "--limit", BACKENDS_COMPARED),
                *("--backend", "vllm", "--base-url", server.base_url),
            )
        largest, samples = 0.0, 0
        for one, other in zip(ours, open_states(self.at("states-vllm")), strict=False):
            if one.input_ids.tolist() != other.input_ids.tolist():
                raise Failed("backends: the two runs hold other samples")
            largest = max(largest, furthest(one, other, len(layers.output_of)))
            samples += 1
        if samples != BACKENDS_COMPARED:
            raise Failed(f"backends: {samples} samples were compared, not {BACKENDS_COMPARED}")
        allowed = TOLERANCE["bfloat16"]
        return {**found, "samples": samples, "distance": round(largest, 4), "allowed": allowed}

    def finetune(self) -> dict[str, Any]:
        return self.train("finetune", self.at("states"), self.at("drafter"))

    def train(self, name: str, states: Path, out: Path) -> dict[str, Any]:
        going = ["--resume"] if (out / "training").exists() else []
        options = ["--mapping", self.at("mapping"), "--epochs", self.epochs, *going]
        options += ["--batch-tokens", 1024]
        found = self.room.json(name, "finetune", states, "-o", out, *options)
        lines = (out / "training" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        first, last = (
            sum(row["loss"][0] for row in some) / len(some) for some in (rows[:10], rows[-10:])
        )
        tokens = sum(row["tokens"] for row in rows)
        loss = [round(first, 2), round(last, 2)]
        return {**found, "loss": loss, "tokens": tokens, "steps": len(rows)}

    def evaluate(self) -> dict[str, Any]:
        return self.room.json("evaluate", "evaluate", self.at("drafter"), self.at("states"))

    def lint(self) -> dict[str, Any]:
        found = ["lint", self.at("drafter"), "--target", self.target, "--engine", "vllm"]
        return self.room.json("lint", *found)

    def acceptance(self, name: str, drafter: Path) -> dict[str, Any]:
        """The verdict with `drafter` in a real engine."""
        with self.room.served(name, serve.drafting(drafter, DRAFTS)) as server:
            return self.room.json(
                name,
                *("acceptance", drafter, "--target", self.target, "--max-tokens", MAX_TOKENS),
                *("--base-url", server.base_url, "--prompts", self.at("held-out.jsonl")),
                codes=(0, 1),
            )


def faults(road: Road, names: list[str]) -> None:
    """Each planted fault, and who names it."""
    room = road.room
    for name in names:
        fault = FAULTS[name]

        def judged(name: str = name, fault: Fault = fault) -> dict[str, Any]:
            folder = planted(fault, road.at("drafter"), road.at(f"planted/{name}"))
            lint = ["lint", folder, "--target", road.target, "--engine", "vllm"]
            linted = room.json(f"fault-{name}", *lint, codes=(0, 1))
            return {"lint": linted, **road.acceptance(f"fault-{name}", folder)}

        room.step(f"fault-{name}", judged, fault.told)


def data_faults(road: Road) -> None:
    """The faults of the data: final states one row off, a stream without markers."""
    room = road.room
    room.step("fault-shifted", lambda: final_shifted(road), "final states one row too late")
    room.step("fault-markers", lambda: no_markers(road), "ids without markers, trained on")


def final_shifted(road: Road) -> dict[str, Any]:
    from eagle3_data import open_shards
    from eagle3_data.draft.extract import Choice, extract
    from eagle3_data.draft.forward import load

    made = extract(
        open_shards(road.at("shards")),
        shifted(load(str(road.target))),
        road.at("planted/states-shifted"),
        Choice(limit=100),
    )
    found = [{"code": one.rule.code, "detail": one.detail} for one in made.findings]
    return {"findings": found, "written": made.manifest is not None}


def no_markers(road: Road) -> dict[str, Any]:
    from tokenizers import Tokenizer

    room, place = road.room, road.at("planted/markers")
    place.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(road.target / "tokenizer.json"))
    capture = road.at("raw_responses.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [without_markers(line, tokenizer) for line in capture]
    for name, which in (("capture", 0), ("rows", 1)):
        text = "".join(pair[which] + "\n" for pair in pairs)
        (place / f"{name}.jsonl").write_text(text, encoding="utf-8")
    name = "fault-markers"
    report = place / "report.json"
    checked = ["check", place / "capture.jsonl", *road.of, "-o", f"json={report}", "--overwrite"]
    code, _ = room.command(name, checked, codes=(0, 1))
    shards, states, drafter = place / "shards", place / "states", place / "drafter"
    room.json(name, "import", place / "rows.jsonl", "-o", shards, *road.of, "--overwrite")
    room.json(name, "extract", shards, "--target", road.target, "-o", states)
    trained = road.train(name, states, drafter)
    live = road.acceptance(name, drafter)
    report_said = json.loads(report.read_text(encoding="utf-8"))
    return {"check": {"exit_code": code, "said": report_said}, "trained": trained, **live}


def missed(room: Room, asked: list[str]) -> list[tuple[str, str]]:
    """What the run did not reach: (step, in words)."""
    done = room.results
    wrong = [("acceptance", text) for text in _apart(done["acceptance"])]
    if done["backends"]["distance"] > done["backends"]["allowed"]:
        text = f"the states of the two backends lie {done['backends']['distance']} apart"
        wrong.append(("backends", text))
    for name in asked:
        said = done[f"fault-{name}"]["said"]
        if not FAULTS[name].named(said):
            text = f"{FAULTS[name].told}: {said['verdict']}, {said['cause'] or 'no cause'}"
            wrong.append((f"fault-{name}", text))
    if (one := done.get("fault-shifted")) and (one["written"] or not one["findings"]):
        wrong.append(("fault-shifted", "final states one row off: extract did not stop"))
    if (one := done.get("fault-markers")) and not (new_codes(done) and one["said"]["sound"]):
        text = f"markers left out: check says {new_codes(done)}, then {one['said']['verdict']}"
        wrong.append(("fault-markers", text))
    return wrong


def _apart(done: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the sound drafter in the engine."""
    said = done["said"]
    if not said["sound"]:
        yield f"acceptance says of the sound drafter: {said['verdict']}"
    if "live" not in said:
        return
    live, walk = said["live"], said["walk"]
    apart = abs(live["acceptance_length"] - walk["acceptance_length"])
    if apart > LENGTH_APART:
        yield f"live and walk differ by {apart:.3f}, allowed are {LENGTH_APART}"
    for k, (one, other) in enumerate(zip(live["p"], walk["p"], strict=True), 1):
        if abs(one - other) > P_APART:
            yield f"P_{k} differs: live {one:.3f}, walk {other:.3f}"
    if live["acceptance_length"] < LEAST:
        yield f"the engine accepts {live['acceptance_length']:.3f}, wanted are {LEAST}"


def ready(rows: int, held_out: int) -> None:
    """Raise Failed or ValueError for what would end the run later."""
    if not (serve.home() / "vllm" / "bin" / "python").is_file():
        raise Failed(f"there is no vLLM in {serve.home()}: run engines/install vllm")
    prompts(rows, held_out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--rows", type=int, default=900, help="prompts that are captured (900)")
    parser.add_argument("--held-out", type=int, default=100, help="prompts for acceptance (100)")
    parser.add_argument("--epochs", type=int, default=4, help="times over the samples (4)")
    parser.add_argument(
        "--fault", choices=list(FAULTS), action="append", default=[], help="plant it (repeatable)"
    )
    parser.add_argument("--faults", action="store_true", help="all faults, those of the data too")
    parser.add_argument("--page", type=Path, help="write what was measured to this page")
    given = parser.parse_args()
    asked = list(FAULTS) if given.faults else given.fault
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server is ended on the way out
    try:
        ready(given.rows, given.held_out)
        settings = {"rows": given.rows, "held_out": given.held_out, "epochs": given.epochs}
        room = Room(given.out, settings)
        road = Road(room, given.rows, given.held_out, given.epochs)
        road.walk()
        faults(road, asked)
        if given.faults:
            data_faults(road)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    wrong = missed(room, asked)
    for step, text in wrong:
        room.forget(step)
        print(f"MISSED: {text}", file=sys.stderr)
    if given.page and not wrong:
        given.page.write_text(page(room.results, os.cpu_count() or 1), encoding="utf-8")
    say("all is as it must be" if not wrong else f"{len(wrong)} missed; they are done again")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
