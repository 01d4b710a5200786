"""A client as many were written: it stores `reasoning_content`, whatever the server calls it.

python wrong_field.py BASE_URL PROMPTS OUT COUNT MAX_TOKENS
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI


def main(base_url: str, prompts: Path, out: Path, count: int, max_tokens: int) -> None:
    client = OpenAI(base_url=base_url, api_key="none", timeout=1800)
    asked = [json.loads(line) for line in prompts.read_bytes().splitlines()[:count]]

    def answered(row: dict[str, Any]) -> str:
        messages = row["request"]["messages"]
        answer = client.chat.completions.create(
            model="smollm2-think",
            messages=messages,
            temperature=0.7,
            top_p=0.95,
            seed=1,
            max_tokens=max_tokens,
        )
        said = answer.choices[0].message
        message = {
            "role": "assistant",
            "content": said.content,
            "reasoning_content": getattr(said, "reasoning_content", None),
        }
        return json.dumps({"id": row["id"], "messages": [*messages, message]}) + "\n"

    with ThreadPoolExecutor(8) as pool, out.open("w", encoding="utf-8") as file:
        file.writelines(pool.map(answered, asked))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
