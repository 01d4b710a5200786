"""Settings files: found upward, strict, relative to themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_data.audit.thresholds import Thresholds
from eagle3_data.cli.config import ConfigError, Settings, find, located, read


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_nearest_file_with_settings_wins(tmp_path: Path) -> None:
    outer = write(tmp_path / "eagle3-data.toml", 'turns = "all"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a" / "pyproject.toml", "[project]\nname = 'x'\n")  # no table of ours
    assert find(inner) == outer
    shared = write(tmp_path / "a" / "pyproject.toml", "[tool.eagle3-data]\nshow = 2\n")
    assert find(inner) == shared
    own = write(tmp_path / "a" / "eagle3-data.toml", "show = 3\n")
    assert find(inner) == own
    assert (read(outer).turns, read(shared).show, read(own).show) == ("all", 2, 3)


def test_no_file_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(None) is None
    assert Settings().limits() is None


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "eagle3-data.toml",
        'tokenizer = "models/t"\nchat-template = "/t.jinja"\nholdout = ["eval/a.jsonl"]\n'
        'profile = "mine.toml"\n',
    )
    got = read(path)
    assert got.tokenizer == str(tmp_path / "models/t")
    assert got.chat_template == "/t.jinja"
    assert got.holdout == (str(tmp_path / "eval/a.jsonl"),)
    assert got.profile == str(tmp_path / "mine.toml")


def test_a_profile_name_is_no_path(tmp_path: Path) -> None:
    assert read(write(tmp_path / "eagle3-data.toml", 'profile = "qwen3"\n')).profile == "qwen3"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('tokeniser = "x"\n', "unknown key tokeniser: did you mean tokenizer"),
        ("xyz = 1\n", "unknown key xyz: known keys: profile, tokenizer, chat-template"),
        ('chat_template = "x"\n', "unknown key chat_template: did you mean chat-template"),
        ('turns = "first"\n', "turns: "),
        ("workers = 0\n", "workers: "),
        ('[severity]\nCAP001 = "loud"\n', "severity.CAP001: "),
        ("[thresholds]\nnot_one = 3\n", "unknown key thresholds.not_one"),
        (
            "[thresholds]\nloop_cut_repeats = -1\n",
            "thresholds.loop_cut_repeats: Input should be greater than or equal to 0",
        ),
        (
            "[thresholds]\nholdout_words = 0\n",
            "thresholds.holdout_words: Input should be greater than or equal to 1",
        ),
        (
            "[thresholds]\nscript_chars = 99999999999\n",
            "thresholds.script_chars: Input should be less than or equal to 1000",
        ),
        (
            "[thresholds]\ncut_share = nan\n",
            "thresholds.cut_share: Input should be a finite number",
        ),
        (
            "[thresholds]\ncut_share = -0.1\n",
            "thresholds.cut_share: Input should be greater than or equal to 0",
        ),
        (
            "[thresholds]\ncut_share = 10\n",
            "thresholds.cut_share: Input should be less than or equal to 1",
        ),
        (
            "[thresholds]\nshift_ratio = inf\n",
            "thresholds.shift_ratio: Input should be a finite number",
        ),
        ("turns = \n", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path / "eagle3-data.toml", text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def test_a_threshold_reaches_the_road(tmp_path: Path) -> None:
    name, field = next(
        (n, f) for n, f in Thresholds.model_fields.items() if isinstance(f.default, int)
    )
    path = write(tmp_path / "eagle3-data.toml", f"[thresholds]\n{name} = {field.default + 1}\n")
    limits = read(path).limits()
    assert limits is not None
    assert getattr(limits, name) == field.default + 1


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        located(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"no table \[tool\.eagle3-data\]"):
        read(write(tmp_path / "pyproject.toml", "[project]\n"))
