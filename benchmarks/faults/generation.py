"""Bad generations: loops, noise, odd ends (part B)."""

from __future__ import annotations

import random

from benchmarks.faults.fault import Row, choice, edits, message


@edits("loop with a changing counter", "B01", "GEN001", heuristic=True)
def _(row: Row, rng: random.Random, other: Row) -> None:
    text = rng.choice(
        ["Step {}: I will check the result again and see. ", "{}. Wait, let me count once more.\n"]
    )
    message(row)["content"] += "".join(text.format(i) for i in range(60))
    choice(row)["finish_reason"] = "length"


@edits("loop in another script", "B01", "GEN001", heuristic=True)
def _(row: Row, rng: random.Random, other: Row) -> None:
    text = rng.choice(
        [
            "我们再检查一次结果。",
            "もう一度確認します。",
            "Проверим ещё раз результат. ",
            "चलो फिर से जाँचें। ",
        ]
    )
    message(row)["reasoning"] += text * 80


@edits("one character over and over", "B02", "GEN002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = "!" * rng.randint(30, 200)


@edits("answer of NUL characters", "B03", "GEN002")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = "\0" * 40


@edits("finish_reason outside the allowed set", "B04 B07 B10", "GEN003", "GEN004", "GEN012")
def _(row: Row, rng: random.Random, other: Row) -> None:
    choice(row)["finish_reason"] = rng.choice(
        ["abort", "error", "repetition", "content_filter", None]
    )


@edits("placeholder for an answer", "B13", "GEN009")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = rng.choice(["N/A", "<nooutput>", "[no response]"])
    message(row)["reasoning"] = None


@edits("unresolved template variable as the prompt", "B11", "CHT007")
def _(row: Row, rng: random.Random, other: Row) -> None:
    row["request"]["messages"] = [
        {"role": "user", "content": rng.choice(["{{question}}", "{{ prompt }}", "{input}"])}
    ]


@edits("nothing generated", "B16", "GEN010")
def _(row: Row, rng: random.Random, other: Row) -> None:
    message(row)["content"] = message(row)["reasoning"] = None
    row["response"]["usage"]["completion_tokens"] = 0
    choice(row)["finish_reason"] = None
