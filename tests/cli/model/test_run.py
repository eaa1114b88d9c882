"""`kvant run` and `kvant chat` on a real model."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

QUESTION = "What is the capital of France?"
RUN_FIELDS = {
    *("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason"),
    *("prompt_tokens_per_s", "generation_tokens_per_s", "kv_format", "kv_bytes_per_token"),
    *("kv_scale_source", "route", "device"),
}


@pytest.mark.parametrize("kv", ["nvfp4", "bf16", "e4m3", "k=e4m3/v=nvfp4"])
def test_answers_with_every_kind_of_cache(kvant: Callable, model: Path, kv: str) -> None:
    result = kvant("run", model, "--kv", kv, "--prompt", QUESTION, "--max-tokens", 32, "--json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert set(answer) == RUN_FIELDS
    assert "Paris" in answer["text"]
    assert answer["completion_tokens"] == len(answer["token_ids"]) > 0
    assert answer["prompt_tokens"] > 5
    assert answer["finish_reason"] in ("stop", "length")
    assert answer["generation_tokens_per_s"] > 0


def test_bytes_per_token_are_those_of_the_layout(kvant: Callable, model: Path) -> None:
    for kv, bits in (("bf16", 16), ("nvfp4", 4.5), ("e4m3", 8)):
        result = kvant("run", model, "--kv", kv, "--prompt", "Hi", "--max-tokens", 1, "--json")
        # 30 layers, K and V of 3 heads with 64 elements.
        assert json.loads(result.stdout)["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * bits / 8


def test_text_goes_to_stdout_and_facts_to_stderr(kvant: Callable, model: Path) -> None:
    result = kvant("run", model, "--kv", "nvfp4", "--prompt", QUESTION, "--max-tokens", 32)
    assert "Paris" in result.stdout
    facts = result.stderr.splitlines()[-1]
    for part in ("nvfp4", "bytes/token", "scales", "route", "/s"):
        assert part in facts
    assert "\x1b" not in result.stderr


def test_the_same_seed_gives_the_same_text(kvant: Callable, model: Path) -> None:
    args = ["run", model, "--raw", "--prompt", "Once", "--max-tokens", 12, "--temperature", 1, "--json", "--seed"]
    first, again, other = (json.loads(kvant(*args, seed).stdout)["token_ids"] for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_max_tokens_and_stop_end_a_text(kvant: Callable, model: Path) -> None:
    args = ["run", model, "--raw", "--prompt", "1 2 3 4 5", "--json"]
    short = json.loads(kvant(*args, "--max-tokens", 3).stdout)
    assert short["completion_tokens"] == 3
    assert short["finish_reason"] == "length"
    stopped = json.loads(kvant(*args, "--max-tokens", 40, "--stop", "9").stdout)
    assert stopped["finish_reason"] == "stop"
    assert "9" not in stopped["text"]


def test_prompt_from_file_and_standard_input(kvant: Callable, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(QUESTION)
    args = ["run", model, "--max-tokens", 4, "--json", "--prompt-file"]
    from_file = json.loads(kvant(*args, path).stdout)
    from_input = json.loads(kvant(*args, "-", stdin=QUESTION).stdout)
    assert from_file["token_ids"] == from_input["token_ids"]


def test_a_file_of_prompts_is_answered_in_parallel(kvant: Callable, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(f"{QUESTION}\n\nName a colour.\nCount to five.\n")
    args = ["run", model, "--prompt-file", path, "--max-tokens", 16, "--batch-invariant", "--json"]
    alone = json.loads(kvant(*args, "--parallel", 1).stdout)
    together = json.loads(kvant(*args, "--parallel", 3, "--speculate", "ngram:3").stdout)
    assert len(together["results"]) == 3
    assert "Paris" in together["results"][0]["text"]
    for one, other in zip(alone["results"], together["results"], strict=True):
        assert one["token_ids"] == other["token_ids"]
    assert together["parallel"] == 3
    assert together["steps"] < alone["steps"]
    assert len(together["acceptance"]) == 3


def test_parallel_answers_come_in_order(kvant: Callable, model: Path) -> None:
    result = kvant("run", model, "--prompt-file", "-", "--parallel", 2, "--max-tokens", 4, stdin="Hi\nHello\nHey\n")
    assert result.returncode == 0, result.stderr
    assert [line[:3] for line in result.stdout.splitlines() if line.startswith("[")] == ["[1]", "[2]", "[3]"]
    assert "3 requests, 2 at once" in result.stderr


def test_a_budget_that_cannot_hold_a_prompt_is_refused(fails: Callable, model: Path) -> None:
    line = fails(1, "run", model, "--kv", "bf16", "--kv-memory", "64t", "--prompt", "word " * 200)
    assert "--kv-memory" in line


def test_a_prompt_longer_than_the_context_is_refused(fails: Callable, model: Path) -> None:
    line = fails(2, "run", model, "--context", 64, "--prompt", "word " * 200)
    assert "64" in line


def test_a_context_beyond_the_model_is_refused(fails: Callable, model: Path) -> None:
    assert "100000" in fails(2, "run", model, "--context", 100000, "--prompt", "x")


def test_chat_keeps_the_conversation_until_reset(kvant: Callable, model: Path) -> None:
    script = f"{QUESTION}\n/help\n/reset\nSay yes.\n/quit\n"
    result = kvant("chat", model, "--kv", "nvfp4", "--max-tokens", 24, stdin=script)
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    assert "/reset" in result.stdout
    assert sum("bytes/token" in line for line in result.stderr.splitlines()) == 2


def test_interrupt_prints_what_there_is(model: Path) -> None:
    command = [os.environ["KVANT_BINARY"], "run", str(model), "--raw", "--prompt", "1 2 3", "--max-tokens", "4000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.read(2)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert first + rest != ""
    assert "error" not in errors


@pytest.mark.parametrize(
    ("spec", "bits"),
    [("f32", 32), ("f16", 16), ("bf16", 16), ("e4m3", 8), ("e5m2", 8), ("nvfp4", 4.5)],
)
def test_strict_run_says_the_format_in_effect(kvant: Callable, model: Path, spec: str, bits: float) -> None:
    result = kvant("run", model, "--kv", spec, "--strict", "--prompt", "Hi", "--max-tokens", 1, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["kv_format"].split(":")[0] == spec
    # 30 layers of 3 heads, 64 channels each of keys and values.
    assert facts["kv_bytes_per_token"] == 30 * 3 * 2 * 64 * bits / 8


def test_a_prompt_of_many_grid_cells_fits_one_sequence(kvant: Callable, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "long.txt"
    text.write_text("The moon goes round the earth, and the earth goes round the sun. " * 160)
    result = kvant("run", model, "--kv", "nvfp4", "--prompt-file", text, "--max-tokens", 2, "--json", timeout=600)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["prompt_tokens"] > 2000
