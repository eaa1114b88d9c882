"""The server says what `kvant run` says, and the same again when the prompt is cached."""

from pathlib import Path

import pytest
from conftest import RunJson, Server, Start

FORMATS = ["f32", "f16", "bf16", "e4m3", "e5m2", "nvfp4", "e4m3-plain", "nvfp4-plain", "k=e4m3/v=nvfp4"]
PROMPT = "hello there, in her hero's heaven " * 12


@pytest.mark.parametrize("kv", FORMATS)
def test_cached_prompts_give_the_same_tokens(start: Start, tiny: Path, kv: str) -> None:
    server = start(tiny, "--threads", 2, "--parallel", 2, "--kv", kv, "--batch-invariant", "--weights", "f32")
    body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    replies = [server.post("/v1/completions", body).json for _ in range(3)]
    choices = [reply["choices"][0] for reply in replies]
    assert choices[0]["logprobs"]["tokens"] == choices[1]["logprobs"]["tokens"] == choices[2]["logprobs"]["tokens"]
    assert choices[0] == choices[1] == choices[2]
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    assert cached[0] == 0
    assert min(cached[1:]) > 0
    assert server.stop() == 0


def test_run_says_the_same(server: Server, tiny: Path, run_json: RunJson) -> None:
    for prompt in ("hello", PROMPT):
        run = run_json(tiny, "--raw", "--prompt", prompt, "--max-tokens", 30, "--kv", "nvfp4", "--threads", 2)
        reply = server.complete(prompt=prompt, max_tokens=30, temperature=0).json
        assert reply["choices"][0]["text"] == run["text"]
        assert reply["usage"]["completion_tokens"] == run["completion_tokens"]
        assert reply["usage"]["prompt_tokens"] == run["prompt_tokens"]
