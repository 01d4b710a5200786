"""Counting supervised tokens: against a loop over rows, by every group, and over unsound shards."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from drafts import FACTS, row, spans, table, write

from eagle3_data.draft import counting
from eagle3_data.draft.counting import OTHERS, count
from eagle3_data.shards.reader import open_shards
from eagle3_data.shards.schema import ShardError


def sample(number: int, rng: random.Random) -> dict:
    """A prompt, a thought, an answer, sometimes tools, markers between."""
    parts = [("prompt", rng.randint(1, 5)), ("reasoning", rng.randint(1, 9)), ("marker", 1)]
    parts += [("content", rng.randint(1, 9))]
    parts += [("tools", rng.randint(1, 4))] if rng.random() < 0.5 else []
    parts += [("marker", 1)]
    length = sum(size for _, size in parts)
    prompt = parts[0][1]
    return row(
        number,
        prompt=prompt,
        sampled=length - prompt,
        spans=spans(*parts),
        input_ids=[rng.randrange(100) for _ in range(length - 1)] + [2],
        grade=rng.choice("AABD"),
        file=rng.choice(["one.jsonl", "two.jsonl"]),
    )


def test_every_group_counts_what_a_loop_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(counting, "ROWS", 7)
    rng = random.Random(1)
    rows = [sample(i, rng) for i in range(60)]
    write(tmp_path, table(rows))
    expected: dict[tuple[str, str], Counter[int]] = {}
    for one in rows:
        kinds = [s["kind"] for s in one["spans"] for _ in range(s["start"], s["end"])]
        for token, mask, kind in zip(one["input_ids"], one["loss_mask"], kinds, strict=True):
            if mask:
                phase = {"reasoning": "thinking", "content": "answer", "marker": "markers"}
                for key in (
                    ("all", "all"),
                    ("grade", one["grade"]),
                    ("phase", phase.get(kind, kind)),
                    ("file", one["file"]),
                ):
                    expected.setdefault(key, Counter())[token] += 1
    found = count(open_shards(tmp_path), 100)
    vectors = {("all", "all"): found.total}
    vectors |= {(kind, name): vector for kind, name, vector in found.groups()}
    assert {
        key: {i: int(n) for i, n in enumerate(vector) if n} for key, vector in vectors.items()
    } == expected
    assert (found.samples, found.tokens) == (60, sum(expected["all", "all"].values()))
    assert found.distinct == len(expected["all", "all"])
    assert [name for kind, name, _ in found.groups() if kind == "phase"] == [
        "thinking",
        "answer",
        "tools",
        "markers",
    ]


def test_filters_narrow_what_is_counted(tmp_path) -> None:
    rng = random.Random(2)
    rows = [sample(i, rng) for i in range(20)]
    write(tmp_path, table(rows))
    found = count(open_shards(tmp_path).where(min_grade="A"), 100)
    assert list(found.by_grade) == ["A"]
    assert found.samples == sum(one["grade"] == "A" for one in rows)


def test_many_files_are_counted_together(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(counting, "FILES", 3)
    write(tmp_path, table(row(i, file=f"{i:02}.jsonl") for i in range(12)))
    found = count(open_shards(tmp_path), 100)
    assert sorted(found.by_file) == ["00.jsonl", "01.jsonl", "02.jsonl", OTHERS]
    assert sum(int(vector.sum()) for vector in found.by_file.values()) == found.tokens
    assert int(found.by_file[OTHERS].sum()) == 9 * 4


def test_progress_ends_at_the_size_of_the_shards(tmp_path) -> None:
    write(tmp_path, table(row(i) for i in range(5)))
    calls: list[tuple[int, int]] = []
    shards = open_shards(tmp_path)
    count(shards, 100, progress=lambda done, total: calls.append((done, total)))
    size = sum(shard.bytes for shard in shards.manifest.shards)
    assert calls[-1] == (size, size)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_ids": [10, 11, 12, 13, 100, 15, 2]}, "not below 100"),
        ({"input_ids": [10, -1, 12, 13, 14, 15, 2]}, "not below 100"),
        ({"supervised_tokens": 3}, "other sampled tokens"),
        ({"spans": spans(("prompt", 2), ("content", 5))}, "other sampled tokens"),
        ({"spans": []}, "do not tile"),
        ({"spans": spans(("prompt", 3), ("poetry", 4))}, "do not tile"),
        (
            {
                "spans": [
                    {"kind": "prompt", "start": 0, "end": 9},
                    {"kind": "content", "start": 9, "end": 7},
                ]
            },
            "do not tile",
        ),
    ],
    ids=str,
)
def test_unsound_shards_stop_it_and_name_verify(tmp_path, changed, message) -> None:
    write(tmp_path, table([row(0), row(1, **changed)]))
    with pytest.raises(ShardError, match=f"{message}.*run `verify`"):
        count(open_shards(tmp_path), FACTS.vocab_size)
