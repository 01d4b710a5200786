"""The choices of a run: a profile that fits its tokenizer, a fast twin that is proven on prompts,
and what the report says of both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from eagle3_data import check, convert, plan
from eagle3_data.profiles.choose import choose
from eagle3_data.records.sources import InputError
from eagle3_data.tokens.markers import MarkerMismatch
from eagle3_data.tokens.tokenizer import Tokenizer, open_tokenizer

ROOT = Path(__file__).parent.parent
SMOLLM = ROOT / "fixtures" / "tokenizers" / "smollm2-think"
CLEAN = ROOT / "fixtures" / "captures" / "clean_smollm2-think.jsonl"


def renamed(folder: Path, model: str) -> Path:
    """The clean capture as if `model` had been served."""
    data = folder / "raw_responses.jsonl"
    data.write_text(CLEAN.read_text().replace('"smollm2-think"', json.dumps(model)))
    return data


def test_a_profile_that_nobody_asked_for_gives_way_to_the_tokenizer(tmp_path: Path) -> None:
    report = check([renamed(tmp_path, "Qwen3-8B")], tokenizer=SMOLLM, workers=1)
    assert report.profile.name == "generic"
    assert report.profile.why.startswith("the records name the model Qwen3-8B, but profile qwen3")
    assert "does not fit the tokenizer: generic is used" in report.notes[0]
    assert report.grades["grade"].to_list() == ["A"]


def test_a_profile_that_was_asked_for_does_not(tmp_path: Path) -> None:
    data = renamed(tmp_path, "Qwen3-8B")
    with pytest.raises(MarkerMismatch, match="<think>"):
        check([data], tokenizer=SMOLLM, profile="qwen3-hybrid", workers=1)
    chosen = choose(None, ["Qwen3-8B"])
    assert plan.fitting(chosen, None, None) is chosen
    fitting = choose(None, ["smollm2-think"])
    assert plan.fitting(fitting, open_tokenizer(SMOLLM), None) is fitting


def test_the_fast_twin_is_proven_on_answers_and_rendered_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Sequence[str]] = []

    def twin(reference: Tokenizer, sample: Sequence[str], prompts: Sequence[str] = ()) -> Tokenizer:
        seen.extend((sample, prompts))
        return reference

    monkeypatch.setattr("eagle3_data.tokens.fast.twin", twin)
    monkeypatch.setattr("eagle3_data.tokens.tokenizer.FAST_FROM_BYTES", 0)
    check([CLEAN], tokenizer=SMOLLM, workers=1)
    sample, prompts = seen
    row = json.loads(CLEAN.read_text().splitlines()[0])
    message, asked = row["response"]["choices"][0]["message"], row["request"]["messages"]
    assert list(sample[:3]) == [message["reasoning"], message["content"], asked[-1]["content"]]
    assert prompts[0].endswith("<|im_start|>assistant\n<think>\n")
    assert asked[-1]["content"] in prompts[0] and len(prompts) == 39


def test_template_and_engines_are_told(tmp_path: Path) -> None:
    report = check([CLEAN], tokenizer=SMOLLM, workers=1)
    assert report.tokenizer is not None
    own = (SMOLLM / "chat_template.jinja").read_bytes()
    assert report.tokenizer.template_sha256 == sha256(own).hexdigest()
    assert report.versions["jinja2"] == version("jinja2")
    other = tmp_path / "other.jinja"
    other.write_text("{{ messages[0]['content'] }}")
    given = check([CLEAN], tokenizer=SMOLLM, chat_template=other, workers=1)
    assert given.tokenizer is not None
    assert given.tokenizer.template_sha256 == sha256(other.read_bytes()).hexdigest()
    bare = check([CLEAN], workers=1)
    assert bare.tokenizer is None and "jinja2" not in bare.versions


def test_a_conversion_refuses_what_an_audit_notes(tmp_path: Path) -> None:
    data, out = renamed(tmp_path, "Qwen3-8B"), tmp_path / "shards"
    with pytest.raises(MarkerMismatch, match="pass --profile generic") as told:
        convert([data], out, tokenizer=SMOLLM)
    assert str(told.value).startswith("the records name the model Qwen3-8B, but profile qwen3")
    assert not out.exists()
    _, manifest = convert([data], out, tokenizer=SMOLLM, profile="generic")
    assert manifest is not None and manifest.rows == 39


def test_held_out_prompts_that_no_rule_looks_for_are_told(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text(json.dumps({"prompt": "What is the capital of France?"}) + "\n")
    note = "held-out prompts were given and nothing looked for them: SET014 holdout-prompt did not"
    assert check([CLEAN], holdout=[held]).notes == ()
    told = check([CLEAN], holdout=[held], ignore=["SET"])
    assert told.notes == (f"{note} run (ignored)",)
    assert check([CLEAN], holdout=[held], select=["CAP"]).notes == (f"{note} run (not selected)",)
    assert check([CLEAN], ignore=["SET"]).notes == ()
    _, manifest = convert([CLEAN], tmp_path / "s", tokenizer=SMOLLM, holdout=[held], ignore=["SET"])
    assert manifest is not None and manifest.identity.options["holdout"] == []


def test_shards_are_refused_from_python_too(tmp_path: Path) -> None:
    convert([CLEAN], tmp_path / "s", tokenizer=SMOLLM)
    for path in ("s", "s/part-00000.parquet", "s/*.parquet"):
        with pytest.raises(InputError, match="these are shards, not captured responses: use"):
            check(str(tmp_path / path))
    other = tmp_path / "spark" / "part-00000-abc-c000.snappy.parquet"
    other.parent.mkdir()
    other.write_bytes((tmp_path / "s" / "part-00000.parquet").read_bytes())
    with pytest.raises(InputError, match="this is Parquet: a capture is JSON lines"):
        check(str(other))
