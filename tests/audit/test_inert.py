"""Hostile text: visible, on one line, without force."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_data.audit.inert import inert, inert_html, inert_json, inert_markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 漢字 and é", "plain text, 漢字 and é"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b2J\x00\x7f", "\\x9b2J\\x00\\x7f"),
        ("user\u202egnp.exe\u2066", "user\\u202egnp.exe\\u2066"),
        ("zero\u200bwidth\ufeff\u2028", "zero\\u200bwidth\\ufeff\\u2028"),
        ("\ud800 lone", "\\ud800 lone"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("##[error]x", "##\\x5berror]x"),
        ("::error::x a ::set-output x::y a :: b", "\\x3a:error::x a \\x3a:set-output x::y a :: b"),
        ("[bold red]x[/]", "[bold red]x[/]"),
    ],
)
def test_inert(text: str, shown: str) -> None:
    assert inert(text) == shown


def test_inert_cuts_to_the_limit_also_after_escaping() -> None:
    assert inert("abcdef", 4) == "abc…"
    assert inert("abcd", 4) == "abcd"
    assert inert("\x1b\x1b", 4) == "\\x1…"


def test_markdown_and_html_are_text() -> None:
    assert inert_markdown("[a](http://x) | `b`") == (
        "<code>&#91;a&#93;&#40;http&#58;//x&#41; &#124; &#96;b&#96;</code>"
    )
    assert inert_html("<script>'\"&\x1b") == "&lt;script&gt;&#x27;&quot;&amp;\\x1b"


@given(st.text())
def test_whatever_the_text_the_result_prints(text: str) -> None:
    shown = inert(text)
    assert shown.isprintable()
    assert "##[" not in shown


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_json_keeps_the_value_and_hides_nothing(text: str) -> None:
    spelled = inert_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(spelled) == text
    assert not any(0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066\u200b\ufeff" for c in spelled)
