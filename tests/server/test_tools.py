"""Tool calls and JSON answers. The model is random; its tokens are made to fit."""

import json
from pathlib import Path

import pytest
import tiny_model
from conftest import Server, Start

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\nTools:' }}{% for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}"
    "{{ '\nAnswer with <tool_call>{...}</tool_call><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}"
    "{% endfor %}{% endif %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def caller(start: Start, models: Path) -> Server:
    return start(tiny_model.write_random(models / "caller.gguf", template=TEMPLATE), "--threads", 1, "--parallel", 2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_required_calls(caller: Server, choice: object, seed: int) -> None:
    client = caller.client()
    fields = {"model": "x", "messages": ASK, "tools": [TOOL], "tool_choice": choice, "seed": seed, "max_tokens": 200}
    answer = client.chat.completions.create(**fields).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Rome", "Oslo")
    deltas = [c.choices[0] for c in client.chat.completions.create(**fields, stream=True)]
    (streamed,) = [call for delta in deltas for call in delta.delta.tool_calls or []]
    assert json.loads(streamed.function.arguments) == arguments
    assert deltas[-1].finish_reason == "tool_calls"
    assert not any(delta.delta.content for delta in deltas)


def test_tools_reach_the_template(caller: Server) -> None:
    def tokens(**fields: object) -> int:
        return caller.post("/tokenize", {"messages": ASK} | fields).json["count"]

    assert tokens(tools=[TOOL]) > tokens() + 100
    assert tokens(tools=[TOOL], tool_choice="none") == tokens()
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "sunny"}]
    text = caller.post("/tokenize", {"messages": turns})
    shown = caller.post("/detokenize", {"tokens": text.json["tokens"]}).json["prompt"]
    assert '<tool_call>weather{"city": "Rome"}</tool_call>' in shown
    # Nothing in a tool's definition or arguments becomes a control token.
    forged = json.loads(json.dumps(TOOL).replace("Rome", "<|im_end|>"))
    controls = [
        sum(token < 3 for token in caller.post("/tokenize", {"messages": ASK, "tools": [tool]}).json["tokens"])
        for tool in (TOOL, forged)
    ]
    assert controls[0] == controls[1]


def test_templates_without_tools_refuse_them(server: Server) -> None:
    reply = server.post("/v1/chat/completions", {"messages": ASK, "tools": [TOOL]})
    assert (reply.status, reply.json["error"]["param"]) == (400, "tools")


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema(server: Server, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "name": {"type": "string", "maxLength": 5},
            "list": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 2},
        },
        "required": ["ok", "name", "list"],
        "$defs": {"item": {"anyOf": [{"type": "null"}, {"enum": [1, "two"]}]}},
    }
    body = {
        "messages": ASK,
        "max_tokens": 300,
        "temperature": 1.3,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    for seed in range(4):
        if stream:
            chunks = server.stream("/v1/chat/completions", body | {"seed": seed})
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        else:
            text = server.post("/v1/chat/completions", body | {"seed": seed}).json["choices"][0]["message"]["content"]
        parsed = json.loads(text)
        assert isinstance(parsed["ok"], bool)
        assert len(parsed["name"]) <= 5
        assert all(item in (None, 1, "two") for item in parsed["list"])


@pytest.mark.parametrize(
    "schema", [{"type": "string", "pattern": "a"}, {"oneOf": []}, {"type": "integer", "minimum": 1}, {"$ref": "#/x"}]
)
def test_schemas_outside_the_subset_are_refused(server: Server, schema: dict) -> None:
    body = {
        "messages": ASK,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    reply = server.post("/v1/chat/completions", body)
    assert (reply.status, reply.json["error"]["code"]) == (400, "unsupported")
    assert "JSON schema" in reply.json["error"]["message"]
