"""A render server on the loopback: what vLLM's `/v1/chat/completions/render` answers, by
transformers over a local tokenizer and its template, with none of our code.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def rendering(folder: Path) -> Iterator[str]:
    """The address of a server for the tokenizer in `folder`."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    class Render(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = tokenizer.apply_chat_template(
                asked["messages"],
                tools=asked.get("tools"),
                add_generation_prompt=asked["add_generation_prompt"],
                tokenize=False,
            )
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            body = json.dumps({"token_ids": ids[: asked["truncate_prompt_tokens"]]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Render)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
