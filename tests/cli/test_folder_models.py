"""Models of Hugging Face folders, run as users run them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint_folder import (
    FFN,
    FP8_CACHE,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    VOCABULARY,
    Tensors,
    kv_scales,
    scale,
    weights,
    write_folder,
)


def byte_symbols() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 400))
    return [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]


def write_tokenizer(folder: Path) -> None:
    tokens = ["<|endoftext|>", *byte_symbols()]
    tokens += [f"<unused{i}>" for i in range(len(tokens), VOCABULARY)]
    content: dict[str, Any] = {
        "added_tokens": [{"id": 0, "content": tokens[0], "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


def quantised(tensors: Tensors) -> Tensors:
    """The same weights as FP8 in q and k, as NVFP4 in the feed-forward layers. All are 1/64."""
    out = dict(tensors)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        out[name] = ("F8_E4M3", [HEADS * HEAD_DIM, HIDDEN], b"\x38" * (HEADS * HEAD_DIM * HIDDEN))
        out[name + "_scale"] = scale(1 / 64)
        out[name.replace("weight", "input_scale")] = scale(0.5)
        for part, rows, columns in (("gate_proj", FFN, HIDDEN), ("down_proj", HIDDEN, FFN)):
            name = f"model.layers.{layer}.mlp.{part}.weight"
            out[name] = ("U8", [rows, columns // 2], b"\x22" * (rows * columns // 2))
            out[name + "_scale"] = ("F8_E4M3", [rows, columns // 16], b"\x38" * (rows * columns // 16))
            out[name + "_scale_2"] = scale(1 / 64)
    return out


def answer(kvant: Callable, folder: Path, *more: str) -> Any:
    args = ["run", folder, "--prompt", "hello", "--max-tokens", 4, "--threads", 2, "--weights", "f32", "--json", *more]
    result = kvant(*args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_scales_of_the_checkpoint_are_used_and_said(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE}, weights() | kv_scales())
    write_tokenizer(folder)
    facts, notices = answer(kvant, folder)
    assert facts["kv_format"] == "e4m3:cond=none:edges=16,32"
    assert facts["kv_scale_source"] == "checkpoint (4 of 4 used)"
    assert "KV scales: 4 of 4 used, from the checkpoint" in notices
    facts, notices = answer(kvant, folder, "--kv", "bf16")
    assert facts["kv_scale_source"] == "none"
    assert "KV scales: 0 of 4 used" in notices
    facts, _ = answer(kvant, folder, "--kv-layers", "1=bf16")
    assert "checkpoint (2 of 4 used)" in facts["kv_scale_source"]


def test_auto_without_a_scheme_is_the_16_bit_type_of_the_checkpoint(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"torch_dtype": "float16"})
    write_tokenizer(folder)
    facts, notices = answer(kvant, folder, "--kv", "auto")
    assert (facts["kv_format"], facts["kv_scale_source"]) == ("f16", "none")
    assert "KV scales" not in notices


def test_plain_specs_take_the_scales_too(kvant: Callable, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"quantization_config": FP8_CACHE}, weights() | kv_scales())
    write_tokenizer(folder)
    for kv in ("e4m3-plain", "nvfp4-plain"):
        facts, notices = answer(kvant, folder, "--kv", kv)
        assert facts["kv_format"].endswith(":cond=none:edges=none")
        assert facts["kv_scale_source"] == "checkpoint (4 of 4 used)"
        assert "KV scales: 4 of 4 used, from the checkpoint" in notices
        result = kvant("inspect", "model", folder, "--kv", kv, "--json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["kv_scales"]["used"] == 4


def test_quantised_weights_mean_the_same_as_plain_ones(kvant: Callable, tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "plain", tensors=weights())
    packed = write_folder(tmp_path / "packed", tensors=quantised(weights()))
    for folder in (plain, packed):
        write_tokenizer(folder)
    assert answer(kvant, plain)[0]["token_ids"] == answer(kvant, packed)[0]["token_ids"]
