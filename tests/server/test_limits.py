"""Prompts and answers at the edges: empty, too long, nothing wanted, everything banned."""

import json
from pathlib import Path

import pytest
import tiny_model
from conftest import Server, Start

CONTEXT = 256


@pytest.fixture(scope="module")
def short(start: Start, models: Path) -> Server:
    model = tiny_model.write_random(models / "short.gguf", context=CONTEXT)
    return start(model, "--threads", 1, "--parallel", 2)


@pytest.fixture(scope="module")
def with_bos(start: Start, models: Path) -> Server:
    return start(tiny_model.write_random(models / "bos.gguf", bos=True), "--threads", 1)


def test_empty_prompts(server: Server, with_bos: Server) -> None:
    """U-81: refused, unless there is a BOS to begin with."""
    for path, body in (("/v1/completions", {"prompt": []}), ("/v1/chat/completions", {"messages": []})):
        for one in (server, with_bos):
            assert one.post(path, body | {"max_tokens": 1}).status == 400
    assert server.complete(prompt="", max_tokens=1).status == 400
    assert with_bos.complete(prompt="", max_tokens=1).status == 200
    for one in (server, with_bos):
        body = {"messages": [{"role": "user", "content": ""}], "max_tokens": 1}
        assert one.post("/v1/chat/completions", body).status == 200


@pytest.mark.parametrize(
    ("value", "status"), [(0, 200), (-1, 400), (1.5, 400), ("5", 400), (None, 200), (10**9, 200), (2.0, 200)]
)
def test_max_tokens(server: Server, value: object, status: int) -> None:
    """U-82: 0 reads the prompt alone."""
    reply = server.complete(prompt="he", max_tokens=value, stop="e")
    assert reply.status == status
    if value == 0:
        (choice,) = reply.json["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("", "length")
        assert reply.json["usage"] == {
            "prompt_tokens": 1,
            "completion_tokens": 0,
            "total_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]},
        }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 100])
@pytest.mark.parametrize("length", [255, 256, 257, 5000])
def test_long_prompts(short: Server, length: int, max_tokens: int, stream: bool) -> None:
    """U-85."""
    body = {"prompt": [5] * length, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}
    reply = short.post("/v1/completions", body)
    if length < CONTEXT:
        assert reply.status == 200
        if not stream:
            assert reply.json["usage"]["completion_tokens"] == 1
            assert reply.json["choices"][0]["finish_reason"] == "length"
        return
    error = reply.json["error"]
    assert (reply.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert (error["prompt_tokens"], error["context_tokens"]) == (length, CONTEXT)
    chat = {"messages": [{"role": "user", "content": "x" * length}], "stream": stream}
    assert short.post("/v1/chat/completions", chat).json["error"]["code"] == "context_length_exceeded"


def test_logprobs_are_numbers(server: Server) -> None:
    """U-84: with tokens that cannot be drawn."""

    def refuse(constant: str) -> float:
        raise ValueError(constant)

    for extra in ({"top_k": 1}, {"logit_bias": {"5": -100}}, {"response_format": {"type": "json_object"}}):
        body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 5, "max_tokens": 5}
        reply = server.post("/v1/chat/completions", body | extra)
        assert reply.status == 200, reply.text
        content = json.loads(reply.text, parse_constant=refuse)["choices"][0]["logprobs"]["content"]
        assert all(-9999 <= token["logprob"] <= 0 for token in content)


@pytest.mark.parametrize("bias", [{"99999999": 5}, {"AI": -100}, {"5": 1e9}, {"-1": 1}, {"5": "x"}, {"5 ": 1}, [5]])
def test_wrong_biases_are_refused(server: Server, bias: object) -> None:
    """U-86."""
    reply = server.complete(prompt="he", max_tokens=1, logit_bias=bias)
    assert (reply.status, reply.json["error"]["param"]) == (400, "logit_bias")


def test_newer_name_of_max_tokens_wins(server: Server) -> None:
    """U-89."""
    body = {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True, "max_completion_tokens": 5}
    for extra in ({}, {"max_tokens": 9}):
        assert server.post("/v1/chat/completions", body | extra).json["usage"]["completion_tokens"] == 5


def test_small_cache_says_what_does_not_fit(start: Start, tiny: Path) -> None:
    server = start(tiny, "--threads", 1, "--kv-memory", "320t", "--context", 1024, "--kv", "bf16")
    reply = server.complete(prompt=[5] * 600, max_tokens=4)
    assert reply.status == 400
    assert reply.json["error"]["code"] in ("does_not_fit", "context_length_exceeded")
    assert server.complete(prompt=[5] * 100, max_tokens=4).status == 200
