"""Every endpoint as clients use it, mostly through OpenAI's own client."""

import openai
import pytest
from conftest import Server

CHAT = [{"role": "user", "content": "hello"}]


def test_health_and_models(server: Server, client: openai.OpenAI) -> None:
    assert server.get("/health").json == {"status": "ok"}
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "kvant")


@pytest.mark.parametrize("extra", [{}, {"seed": 3, "top_p": 0.9, "top_k": 20, "min_p": 0.01}])
def test_completion(server: Server, client: openai.OpenAI, extra: dict) -> None:
    body = {"top_k": extra.pop("top_k", 0), "min_p": extra.pop("min_p", 0)}
    answer = client.completions.create(model="tiny", prompt="hello", max_tokens=7, extra_body=body, **extra)
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (4, 4 + answer.usage.completion_tokens)
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.id.startswith("cmpl-")


def test_chat_whole_and_streamed_are_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="x", messages=CHAT, temperature=0, max_tokens=20)
    assert whole.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(model="x", messages=CHAT, temperature=0, max_tokens=20, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_ends_as_specified(server: Server, client: openai.OpenAI) -> None:
    """U-88."""
    for path, body in (("/v1/completions", {"prompt": "hello"}), ("/v1/chat/completions", {"messages": CHAT})):
        for usage in (False, True):
            chunks = server.stream(
                path, body | {"max_tokens": 6, "ignore_eos": True, "stream_options": {"include_usage": usage}}
            )
            if usage:
                last = chunks.pop()
                assert last["choices"] == []
                assert last["usage"]["completion_tokens"] == 6
            reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
            assert reasons[-1] == "length"
            assert set(reasons[:-1]) == {None}
            assert all("usage" not in chunk for chunk in chunks)
    stream = client.chat.completions.create(
        model="x", messages=CHAT, max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    assert list(stream)[-1].usage is not None


def test_several_choices_and_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="x", prompt=["he", "in"], n=2, max_tokens=5, seed=1, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text != answer.choices[1].text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 2
    chat = client.chat.completions.create(model="x", messages=CHAT, n=3, max_tokens=4, stream=True)
    assert {choice.index for chunk in chat for choice in chunk.choices} == {0, 1, 2}


def test_seed_repeats(client: openai.OpenAI) -> None:
    texts = [client.completions.create(model="x", prompt="he", max_tokens=12, seed=5).choices[0].text for _ in range(2)]
    assert texts[0] == texts[1]


def test_echo(server: Server) -> None:
    whole = server.complete(prompt="he", max_tokens=4, echo=True, temperature=0).json["choices"][0]["text"]
    assert whole.startswith("he")
    chunks = server.stream("/v1/completions", {"prompt": "he", "max_tokens": 4, "echo": True, "temperature": 0})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole


def test_prompt_as_tokens_is_the_text(server: Server) -> None:
    fields = {"max_tokens": 6, "temperature": 0}
    text = server.complete(prompt="hello", **fields).json["choices"][0]["text"]
    tokens = [259, 3 + ord("l"), 3 + ord("l"), 3 + ord("o")]
    assert server.complete(prompt=tokens, **fields).json["choices"][0]["text"] == text
    assert server.complete(prompt=[tokens], **fields).json["choices"][0]["text"] == text


def test_logprobs(server: Server, client: openai.OpenAI) -> None:
    fields = {"max_tokens": 5, "temperature": 0, "extra_body": {"ignore_eos": True}}
    chat = client.chat.completions.create(model="x", messages=CHAT, logprobs=True, top_logprobs=3, **fields)
    content = chat.choices[0].logprobs.content
    assert len(content) == 5
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert token.bytes is not None
    streamed = client.chat.completions.create(
        model="x", messages=CHAT, logprobs=True, top_logprobs=3, stream=True, **fields
    )
    parts = [c.choices[0].logprobs.content for c in streamed if c.choices[0].logprobs is not None]
    assert [token.token for part in parts for token in part] == [token.token for token in content]
    plain = client.completions.create(model="x", prompt="he", logprobs=2, **fields).choices[0].logprobs
    assert len(plain.tokens) == len(plain.token_logprobs) == len(plain.top_logprobs) == len(plain.text_offset) == 5
    assert plain.text_offset[0] == 0


def test_penalties_and_bias_reach_the_sampler(server: Server) -> None:
    token = 3 + ord("Z")
    fields = {"prompt": "he", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    assert server.complete(**fields, logit_bias={str(token): 100}).json["choices"][0]["text"] == "ZZZZ"
    text = server.complete(**fields, logit_bias={str(token): 100}, presence_penalty=2, frequency_penalty=2)
    assert text.status == 200


def test_ignored_fields_are_named(server: Server) -> None:
    reply = server.complete(prompt="he", max_tokens=1, surprise=1, **{"bad\r\nname": 2})
    assert reply.status == 200
    assert reply.headers["X-Kvant-Ignored-Fields"] == "surprise, bad??name"
    assert "X-Kvant-Ignored-Fields" not in server.complete(prompt="he", max_tokens=1).headers


def test_tokenize_and_back(server: Server) -> None:
    reply = server.post("/tokenize", {"prompt": "hello é", "with_pieces": True}).json
    assert reply["count"] == len(reply["tokens"]) == len(reply["pieces"])
    assert reply["pieces"][0] == "he"
    assert server.post("/detokenize", {"tokens": reply["tokens"]}).json == {"prompt": "hello é"}
    assert server.post("/detokenize", {"tokens": [1]}).json == {"prompt": "<|im_start|>"}
    for body in ({}, {"tokens": 7}, {"tokens": [-1]}, {"tokens": [99999]}, {"tokens": ["a"]}):
        assert server.post("/detokenize", body).status == 400
    assert server.post("/tokenize", {}).status == 400


def test_metrics_and_props(server: Server) -> None:
    before = server.metric("kvant_generated_tokens_total")
    server.complete(prompt="he", max_tokens=5, ignore_eos=True)
    assert server.metric("kvant_generated_tokens_total") - before == 5
    reply = server.get("/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in reply.text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0
    assert 'kvant_responses_total{endpoint="/v1/completions",status="200"}' in reply.text
    props = server.get("/props").json
    assert props["kv"]["format"].startswith("nvfp4:")
    assert props["kv"]["parts"]["edges"] == "16,32"
    assert props["kv"]["bytes_per_token"] < props["kv"]["bytes_per_token_16bit"] == 256
    assert props["limits"]["context"] == 1024


def test_scoring(server: Server) -> None:
    fields = {"prompt": "hello", "echo": True, "logprobs": 2, "temperature": 0}
    scored = server.complete(**fields, max_tokens=0).json["choices"][0]
    assert (scored["text"], scored["finish_reason"]) == ("hello", "length")
    logprobs = scored["logprobs"]
    assert logprobs["tokens"] == ["he", "l", "l", "o"]
    assert logprobs["text_offset"] == [0, 2, 3, 4]
    assert logprobs["token_logprobs"][0] is None
    assert all(value < 0 for value in logprobs["token_logprobs"][1:])
    longer = server.complete(**fields, max_tokens=2).json["choices"][0]
    assert longer["logprobs"]["tokens"][:4] == logprobs["tokens"]
    assert longer["text"].startswith("hello")
