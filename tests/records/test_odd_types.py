"""Values of another type than any client writes cost nothing but their own meaning."""

from __future__ import annotations

import json

import pytest

from eagle3_data.records.lines import LineBatch
from eagle3_data.records.shapes import table_from


@pytest.mark.parametrize("odd", [{}, [], 1, True, None], ids=repr)
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ('{"prompt":"q","content":[{"type":ODD,"text":"x"}]}', "record"),
        ('{"output":[{"type":ODD}],"prompt":"q"}', "record"),
        ('{"messages":[{"role":ODD,"content":"q"},{"role":"assistant","content":"a"}]}', "record"),
        ('{"request":{"messages":ODD},"response":{"choices":[{"message":ODD}]}}', "record"),
    ],
)
def test_an_odd_type_is_read(line: str, status: str, odd: object) -> None:
    data = line.replace("ODD", json.dumps(odd)).encode()
    assert table_from(LineBatch(0, [data], [1], [0]))["status"].to_list() == [status]
