"""`kvant inspect model` over Hugging Face folders: what it finds, and what it says would be refused."""

import functools
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_folder import CONFIG, FP8_CACHE, kv_scales, safetensors, scale, weights, write_folder


def test_folder_with_scales(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE}, weights() | kv_scales())
    result = kvant("inspect", "model", folder, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["num_layers"] == 2
    assert (facts["kv_scales"]["found"], facts["kv_scales"]["used"]) == (4, 4)
    auto = facts["kv"][0]
    assert auto["means"] == "e4m3:cond=none:edges=16,32"
    assert auto["bytes_per_token"] == 2 * 2 * 2 * 32
    assert auto["bytes_per_32k"] == auto["bytes_per_token"] * 32768
    assert {layer["kv"] for layer in facts["layers"]} == {"e4m3:cond=none:edges=16,32"}
    text = kvant("inspect", "model", folder).stdout
    assert "KV scales: 4 of 4 used" in text
    assert "KV scheme: e4m3" in text


def test_layers_by_hand(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    result = kvant("inspect", "model", folder, "--kv", "nvfp4", "--kv-layers", "1=bf16", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert [layer["kv"].split(":")[0] for layer in facts["layers"]] == ["nvfp4", "bf16"]


def test_refusals_have_a_reason_and_an_exit_code(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE}, weights() | kv_scales())
    result = kvant("inspect", "model", folder, "--kv", "e5m2", "--kv", "e4m3")
    assert result.returncode == 3
    assert "refused: an e5m2 cache does not go with a quantised checkpoint" in result.stdout
    assert "--kv e5m2" in result.stderr
    unknown = FP8_CACHE | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}}
    folder = write_folder(tmp_path / "n", {"quantization_config": unknown})
    result = kvant("inspect", "model", folder)
    assert result.returncode == 3
    assert "8 bits of type 'int'" in result.stderr


MLA = {
    "rank": ({"kv_lora_rank": 512}, "kv_lora_rank is 512"),
    "model type": ({"model_type": "deepseek_v3"}, "model_type is 'deepseek_v3'"),
    "class": ({"architectures": ["DeepseekV2ForCausalLM"], "kv_lora_rank": 256}, "kv_lora_rank is 256"),
    "text model": ({"text_config": {"kv_lora_rank": 128}}, "text_config: kv_lora_rank is 128"),
}


@pytest.mark.parametrize("name", MLA)
def test_latent_attention_is_refused_by_its_value(kvant: Callable, tmp_path: Path, name: str) -> None:
    changes, text = MLA[name]
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE} | changes, tensors={})
    for args in (["inspect", "model", folder], ["run", folder, "--prompt", "x", "--kv", "nvfp4"]):
        result = kvant(*args)
        assert (result.returncode, result.stdout) == (3, "")
        (line,) = result.stderr.splitlines()
        assert text in line
        assert "(MLA)" in line
        assert "keys and values per head are needed: use a checkpoint of another family" in line


NAN = float("nan")
DEFECTS = {
    "nan": ({"model.layers.1.self_attn.k_proj.k_scale": scale(NAN)}, "k_scale' is nan"),
    "zero": ({"model.layers.1.self_attn.k_proj.k_scale": scale(0.0)}, "k_scale' is 0"),
    "shape": ({"model.layers.1.self_attn.v_proj.v_scale": scale(0.1, 3)}, "has shape [3]"),
    "misspelled": ({"model.layers.1.self_attn.k_proj.kscale": scale(0.1)}, "k_proj.kscale"),
    "misplaced": ({"model.layers.1.self_attn.o_proj.k_scale": scale(0.1)}, "o_proj.k_scale"),
    "no such layer": ({"model.layers.9.self_attn.k_proj.k_scale": scale(0.1)}, "layer 9"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_of_scales_are_named(kvant: Callable, tmp_path: Path, name: str) -> None:
    tensors, text = DEFECTS[name]
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE}, weights() | kv_scales() | tensors)
    for args in (["inspect", "model", folder], ["run", folder, "--prompt", "x"]):
        result = kvant(*args)
        assert result.returncode in (1, 3)
        assert text in result.stderr
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("stored", [True, False])
def test_tied_embeddings(kvant: Callable, tmp_path: Path, declared: bool, stored: bool) -> None:
    """`stored`: the weights hold a head of their own."""
    folder = write_folder(tmp_path / "m", {"tie_word_embeddings": declared}, weights(tied=not stored))
    result = kvant("inspect", "model", folder)
    if not declared and not stored:
        assert result.returncode == 1
        assert "lm_head.weight" in result.stderr
    else:
        assert result.returncode == 0, result.stderr


def test_missing_shards_and_shapes_are_named(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00003.safetensors")
    error = kvant("inspect", "model", folder).stderr
    assert str(folder / "model-00002-of-00003.safetensors") in error
    assert str(folder / "model-00003-of-00003.safetensors") in error
    folder = write_folder(tmp_path / "n", {"hidden_size": 128})
    assert "has shape [300, 64]; the model's configuration needs [300, 128]" in kvant("inspect", "model", folder).stderr
    folder = write_folder(tmp_path / "o")
    assert "outside the model's limit" in kvant("run", folder, "--prompt", "x", "--context", 513).stderr


GOOD = safetensors(weights())


def with_header(old: bytes, new: bytes) -> bytes:
    size = int.from_bytes(GOOD[:8], "little")
    header = GOOD[8 : 8 + size]
    assert old in header
    header = header.replace(old, new)
    return len(header).to_bytes(8, "little") + header + GOOD[8 + size :]


BAD_FOLDERS = {
    "deep config": (b'{"a":' + b"[" * 5000, GOOD),
    "deep objects": (b'{"a":' * 5000, GOOD),
    "not UTF-8": (b'{"architectures": ["\xff\xfe"]}', GOOD),
    "huge size": (json.dumps(CONFIG | {"hidden_size": 2**63}).encode(), GOOD),
    "huge layers": (json.dumps(CONFIG | {"num_hidden_layers": 2**31 - 1}).encode(), GOOD),
    "huge vocabulary": (json.dumps(CONFIG | {"vocab_size": 2**64 - 1}).encode(), GOOD),
    "negative heads": (json.dumps(CONFIG | {"num_attention_heads": -1}).encode(), GOOD),
    "huge number": (b'{"hidden_size": 1e999}', GOOD),
    "empty config": (b"", GOOD),
    "truncated weights": (json.dumps(CONFIG).encode(), GOOD[:-1]),
    "no weights": (json.dumps(CONFIG).encode(), b""),
    "huge header": (json.dumps(CONFIG).encode(), b"\xff" * 7 + b"\x7f" + GOOD[8:]),
    "deep header": (json.dumps(CONFIG).encode(), (5004).to_bytes(8, "little") + b'{"a"' + b"[" * 5000),
    "truncated header": (json.dumps(CONFIG).encode(), GOOD[:100]),
    "header not UTF-8": (json.dumps(CONFIG).encode(), with_header(b"model.norm", b"\xff\xfe.norm")),
    "huge offsets": (json.dumps(CONFIG).encode(), with_header(b"[0, 38400]", b"[0, %d]" % 2**63)),
    "huge shape": (
        json.dumps(CONFIG).encode(),
        safetensors({"a": ("F32", [2**63, 2**63], b"")}),
    ),
}


MOST_SECONDS = 1.0
MOST_MEMORY = 50_000_000


def fails_alone(arguments: list[str]) -> tuple[str, int]:
    """Error text and peak of resident memory, in bytes, of a run that must fail and print nothing else."""
    process = subprocess.Popen([os.environ["KVANT_BINARY"], *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None and process.stdout is not None
    error, output = process.stderr.read().decode(), process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (1, 3), error
    assert output == b""
    return error, usage.ru_maxrss * 1024


@functools.cache
def idle_peak() -> int:
    """What the program takes to find that there is no file."""
    return fails_alone(["inspect", "model", "/nowhere"])[1]


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_crafted_files_end_in_one_line_quickly_and_in_little_memory(tmp_path: Path, name: str) -> None:
    config, model = BAD_FOLDERS[name]
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(model)
    # Seconds are those of an idle machine: the best of three where others compute.
    for _ in range(3):
        start = time.monotonic()
        error, peak = fails_alone(["inspect", "model", str(tmp_path)])
        seconds = time.monotonic() - start
        assert len(error.splitlines()) == 1, error
        assert peak - idle_peak() < MOST_MEMORY, f"{peak} bytes"
        if seconds < MOST_SECONDS:
            return
    raise AssertionError(f"{seconds} s")
