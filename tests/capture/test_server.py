"""Which server answers: addresses, keys, kinds and models, by what real engines say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import httpx2
import pytest

from eagle3_data.capture.ids import ask_for_ids, ways
from eagle3_data.capture.missing import ExtraMissing, needed
from eagle3_data.capture.probe_answers import _posted
from eagle3_data.capture.server import (
    NO_KEY,
    Kind,
    Server,
    ServerFault,
    connect,
    identify,
    key_from,
    normal_url,
    root_of,
)
from eagle3_data.capture.thinking import SwitchFault, switch
from eagle3_data.profiles.load import load

KEY = "sk-canary-5f1c"


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("http://host/v1/chat/completions", "http://host/v1"),
        ("https://router.example/api/v1", "https://router.example/api/v1"),
        ("https://host/v1beta/openai", "https://host/v1beta/openai"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("  http://host  ", "http://host/v1"),
    ],
)
def test_an_address_is_made_normal(given: str, base: str) -> None:
    assert normal_url(given) == base
    assert normal_url(base) == base


@pytest.mark.parametrize(
    "given",
    [
        f"http://user:{KEY}@host/v1",
        f"http://{KEY}@host/v1",
        f"http://host/v1?key={KEY}",
        f"http://host/v1#{KEY}",
    ],
)
def test_an_address_that_holds_a_key_is_refused_without_showing_it(given: str) -> None:
    with pytest.raises(ServerFault, match="is refused, because it is stored") as fault:
        normal_url(given)
    assert KEY not in str(fault.value)


@pytest.mark.parametrize("given", ["ftp://host/v1", "http:///v1", "http://host:port/v1", ""])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(ServerFault, match="http://host:port/v1"):
        normal_url(given)


def test_the_root_is_the_address_without_its_version() -> None:
    assert root_of("http://host:1/v1") == "http://host:1"
    assert root_of("https://host/api/v1") == "https://host/api"


def test_a_key_comes_from_the_variable_named_else_from_the_usual_ones() -> None:
    assert key_from(None, {}) == NO_KEY
    assert key_from(None, {"OPENAI_API_KEY": "o"}) == "o"
    assert key_from(None, {"OPENAI_API_KEY": "o", "EAGLE3_API_KEY": f" {KEY}\n"}) == KEY
    assert key_from("MINE", {"MINE": KEY, "EAGLE3_API_KEY": "other"}) == KEY
    with pytest.raises(ServerFault, match="--api-key-env: no variable of that name"):
        key_from("MINE", {"EAGLE3_API_KEY": "other"})


@pytest.mark.parametrize("key", [f"{KEY}\nX", f"{KEY}é", f"{KEY}\x00"])
def test_a_key_that_no_header_can_carry_is_told_without_its_text(key: str) -> None:
    with pytest.raises(ServerFault) as fault:
        key_from("MINE", {"MINE": key})
    assert KEY not in str(fault.value)
    with pytest.raises(ServerFault) as fault:
        connect("http://host", api_key=key)
    assert KEY not in str(fault.value)


def known(
    answers: Mapping[str, tuple[int, object]], model: str | None = None, key: str = KEY
) -> Server:
    """`identify` against a server that gives `answers` by path, 404 elsewhere."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        status, body = answers.get(request.url.path, (404, {"detail": "Not Found"}))
        if isinstance(body, str):
            return httpx2.Response(status, text=body)
        return httpx2.Response(status, json=body)

    async def run() -> Server:
        transport = httpx2.MockTransport(answer)
        async with connect("http://host:1", api_key=key, transport=transport) as client:
            return await identify(client, model=model)

    return asyncio.run(run())


def listed(*entries: Mapping[str, object]) -> tuple[int, object]:
    return 200, {"object": "list", "data": list(entries)}


VLLM = {"id": "m", "owned_by": "vllm", "root": "/models/m", "parent": None}


def test_each_kind_is_known_by_what_it_says() -> None:
    assert known({"/v1/models": listed(VLLM), "/version": (200, {"version": "0.32.0"})}) == Server(
        "http://host:1/v1", Kind.VLLM, "0.32.0", "m", ("m",)
    )
    sglang = {"/v1/models": listed({"id": "m", "owned_by": "sglang"})}
    new = known(sglang | {"/server_info": (200, {"version": "0.5.23"})})
    assert (new.kind, new.version) == (Kind.SGLANG, "0.5.23")
    old = known(sglang | {"/get_server_info": (200, {"version": "0.5.5"})})
    assert (old.kind, old.version) == (Kind.SGLANG, "0.5.5")
    llama = known(
        {
            "/v1/models": listed({"id": "m.gguf", "owned_by": "llamacpp"}),
            "/props": (200, {"build_info": "b6123-0cf6725"}),
        }
    )
    assert (llama.kind, llama.version) == (Kind.LLAMACPP, "b6123-0cf6725")
    paths = {"paths": {"/load_model": {}, "/v1/responses": {}, "/v1/chat/completions": {}}}
    transformers = known(
        {"/v1/models": listed({"id": "m", "owned_by": "local"}), "/openapi.json": (200, paths)}
    )
    assert (transformers.kind, transformers.version) == (Kind.TRANSFORMERS, None)
    router = known({"/v1/models": listed({"id": "m", "owned_by": "someone"})})
    assert (router.kind, router.version) == (Kind.UNKNOWN, None)


def test_a_version_that_is_not_told_is_none() -> None:
    for body in ((404, {}), (200, {"version": 7}), (200, "<html>"), (500, "")):
        assert known({"/v1/models": listed(VLLM), "/version": body}).version is None


def test_the_one_model_is_taken_and_several_are_told() -> None:
    adapter = {"id": "lora", "owned_by": "vllm", "root": "/lora", "parent": "m"}
    alias = {**VLLM, "id": "alias"}
    assert known({"/v1/models": listed(VLLM, alias, adapter)}).model == "m"
    assert known({"/v1/models": listed(VLLM, adapter)}, "lora").model == "lora"
    many = [{"id": f"m{i}", "owned_by": "x"} for i in range(12)]
    with pytest.raises(ServerFault, match=r"--model: the server serves m0, .*m7 and 4 more"):
        known({"/v1/models": listed(*many)})
    with pytest.raises(ServerFault, match=r"no model m99: it serves m0"):
        known({"/v1/models": listed(*many)}, "m99")
    many[3]["status"] = {"value": "loaded"}
    assert known({"/v1/models": listed(*many)}).model == "m3"
    assert known({"/v1/models": listed()}, "anything").model == "anything"
    with pytest.raises(ServerFault, match="serves none"):
        known({"/v1/models": listed()})


def test_a_hostile_model_name_is_told_inert() -> None:
    with pytest.raises(ServerFault) as fault:
        known({"/v1/models": listed({"id": "a\x1b[2J"}, {"id": "b"})})
    assert "\x1b" not in str(fault.value)


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, {"error": f"bad key {KEY}"}, "refuses the key"),
        (403, "", "refuses the key"),
        (404, {"detail": "Not Found"}, "lists no models"),
        (200, "<html>", "lists no models"),
        (200, {"data": "x"}, "lists no models"),
        (500, f"trace {KEY}", "answers HTTP 500"),
    ],
)
def test_what_is_no_api_is_told_with_the_next_step(status: int, body: object, told: str) -> None:
    with pytest.raises(ServerFault, match=told) as fault:
        known({"/v1/models": (status, body)})
    assert KEY not in str(fault.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (httpx2.ConnectError("refused"), r"nothing answers there \(ConnectError\)"),
        (httpx2.ReadTimeout("slow"), "no answer in time"),
    ],
)
def test_silence_is_told(error: Exception, told: str) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise error

    async def run() -> None:
        transport = httpx2.MockTransport(answer)
        async with connect("http://host:1", api_key=KEY, transport=transport) as client:
            await identify(client)

    with pytest.raises(ServerFault, match=told) as fault:
        asyncio.run(run())
    assert KEY not in str(fault.value)


def test_a_server_that_drips_is_not_heard_for_ever() -> None:
    """The client's time-out is for each read, and bytes arrive here without end."""

    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)

    async def run(road: str) -> object:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=drops()))
        async with connect("http://host:1", api_key=KEY, timeout=0.2, transport=transport) as one:
            if road == "models":
                return await identify(one)
            return await _posted(one, {})

    with pytest.raises(ServerFault, match="no answer in time"):
        asyncio.run(run("models"))
    assert asyncio.run(run("probe")) == (None, b"no answer in time")


def test_odd_entries_among_the_models_are_lived_with() -> None:
    odd = {"id": "m", "owned_by": ["x"], "root": [1]}
    found = known({"/v1/models": listed(odd)})
    assert (found.kind, found.model) == (Kind.UNKNOWN, "m")


def test_the_switch_is_the_profile_s_own() -> None:
    qwen, kimi = load("qwen3-hybrid"), load("kimi-k2.5")
    assert switch(qwen, None) == {}
    assert switch(qwen, False) == {"chat_template_kwargs": {"enable_thinking": False}}
    assert switch(kimi, True) == {"chat_template_kwargs": {"thinking": True}}
    assert switch(load("kimi-k2-thinking"), True) == {}
    with pytest.raises(SwitchFault, match="kimi-k2-thinking knows no switch that turns thinking"):
        switch(load("kimi-k2-thinking"), False)
    assert switch(load("kimi-k2-instruct"), False) == {}


def test_each_kind_is_asked_for_ids_in_its_own_words() -> None:
    assert ask_for_ids(Kind.VLLM) == {"return_token_ids": True}
    assert ask_for_ids(Kind.VLLM, stream=True) == {"return_token_ids": True}
    assert ask_for_ids(Kind.SGLANG)["return_prompt_token_ids"] is True
    assert "return_output_ids_in_sglext" in ask_for_ids(Kind.SGLANG, stream=True)
    assert ask_for_ids(Kind.LLAMACPP)["return_tokens"] is True
    assert ask_for_ids(Kind.TRANSFORMERS) == ask_for_ids(Kind.UNKNOWN) == {}
    assert len(ways(Kind.UNKNOWN)) == 4
    assert ways(Kind.TRANSFORMERS) == ()


def test_a_missing_package_is_told_with_the_command_that_installs_it() -> None:
    with (
        pytest.raises(ExtraMissing, match=r"pip install '\.\[capture\]'"),
        needed("nowhere"),
    ):
        raise ModuleNotFoundError(name="nowhere")
    with pytest.raises(ModuleNotFoundError), needed("nowhere"):
        raise ModuleNotFoundError(name="elsewhere")
