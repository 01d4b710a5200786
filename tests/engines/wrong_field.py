"""A client as many were written: it stores `reasoning_content`, whatever the server calls it.

python wrong_field.py BASE_URL PROMPTS OUT COUNT MAX_TOKENS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from openai import OpenAI


def main(base_url: str, prompts: Path, out: Path, count: int, max_tokens: int) -> None:
    client = OpenAI(base_url=base_url, api_key="none", timeout=1800)
    lines = prompts.read_text(encoding="utf-8").splitlines()[:count]
    with out.open("w", encoding="utf-8") as file:
        for line in lines:
            row = json.loads(line)
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
            file.write(json.dumps({"id": row["id"], "messages": [*messages, message]}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
