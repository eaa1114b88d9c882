"""Help, version and wrong command lines."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMANDS = [
    ["run"],
    ["chat"],
    ["eval", "kv"],
    ["bench", "model"],
    ["bench", "attention"],
    ["calibrate"],
    ["inspect", "kernels"],
    ["inspect", "kv"],
    ["inspect", "model"],
    ["kv", "quantize"],
    ["kv", "dequantize"],
]
BAD_USAGE = [
    [],
    ["no-such-command"],
    ["inspect"],
    ["inspect", "kv"],
    ["inspect", "kv", "--format", "nvfp4", "--no-such-option"],
    ["inspect", "kv", "--format", "nvfp4", "--page", "many"],
    ["kv", "quantize", "--format", "nvfp4"],
    ["bench", "attention", "--suite", "no-such-suite"],
    ["bench", "model"],
    ["bench", "model", "model.gguf", "--dummy", "shape.json"],
    ["run"],
    ["run", "model.gguf", "--prompt", "x", "--temperature", "-1"],
    ["run", "model.gguf", "--prompt", "x", "--prompt-file", "y"],
    ["run", "model.gguf", "--prompt", "x", "--raw", "--chat"],
    ["run", "model.gguf", "--prompt", "x", "--parallel", "2"],
    ["run", "model.gguf", "--prompt", "x", "--kv-memory", "2GB"],
    ["run", "model.gguf", "--prompt", "x", "--speculate", "ngram"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_examples_that_name_the_command(kvant: Callable, command: list[str]) -> None:
    result = kvant(*command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    examples = result.stdout.split("Examples:\n")[1]
    assert "kvant " + " ".join(command) in examples


def test_top_level_help_lists_commands_and_exit_codes(kvant: Callable) -> None:
    result = kvant("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"  {command[0]} " in result.stdout
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not supported" in result.stdout


def test_version(kvant: Callable) -> None:
    result = kvant("--version")
    assert result.returncode == 0
    name, version = result.stdout.split()
    assert name == "kvant"
    assert len(version.split(".")) == 3


@pytest.mark.parametrize("args", BAD_USAGE, ids=" ".join)
def test_wrong_usage_is_one_line_and_exit_code_2(fails: Callable, args: list[str]) -> None:
    fails(2, *args)


def test_the_command_line_page_is_up_to_date() -> None:
    root = Path(os.environ["KVANT_SOURCE_DIR"])
    result = subprocess.run(
        [sys.executable, root / "tools/generate_cli_docs.py", os.environ["KVANT_BINARY"], "--check"],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout
