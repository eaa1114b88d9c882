"""Sense, not only form: a trained model answers through OpenAI's client."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def served(start: Callable, smollm: Path) -> object:
    return start(smollm, "--kv", "nvfp4", "--parallel", 4, "--context", 2048)


def test_chat_makes_sense(served) -> None:
    client = served.client()
    answer = client.chat.completions.create(
        model="x", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=30
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_run_says_the_same(served, smollm: Path, run_json: Callable) -> None:
    run = run_json(smollm, "--prompt", QUESTION, "--max-tokens", 40, "--kv", "nvfp4", "--context", 2048)
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40, "logprobs": True}
    choice = served.post("/v1/chat/completions", body).json["choices"][0]
    pieces = [served.post("/detokenize", {"tokens": [token]}).json["prompt"] for token in run["token_ids"]]
    assert [token["token"] for token in choice["logprobs"]["content"]] == pieces


def test_json_follows_the_schema(served) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Spain"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    for seed in range(3):
        answer = served.client().chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": "Name a city in France, as JSON."}],
            seed=seed,
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        )
        parsed = json.loads(answer.choices[0].message.content)
        assert set(parsed) == {"city", "country"}
        assert parsed["country"] in ("France", "Spain")


def test_scoring_prefers_sense(served) -> None:
    def total(text: str) -> float:
        reply = served.complete(prompt=text, max_tokens=0, echo=True, logprobs=1)
        logprobs = reply.json["choices"][0]["logprobs"]["token_logprobs"]
        assert logprobs[0] is None
        return sum(logprobs[1:])

    assert total("The capital of France is Paris.") > total("The capital of France is cheese.")
