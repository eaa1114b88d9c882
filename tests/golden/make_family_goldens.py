#!/usr/bin/env python3
"""Writes families/*.json: tiny random checkpoints of every model family and what transformers computes for them.

A file holds a config.json, how the values of every tensor follow from its name, the same model as GGUF where that
exists, and samples of the logits. tests/support/family_golden.h makes the checkpoint from it. The model runs in fp64 on
the values as the checkpoint's dtype rounds them, so that the goldens are exact to the digits written.

    pip install torch transformers numpy ml_dtypes
    python3 tests/golden/make_family_goldens.py [CASE ...]
"""

import json
import pathlib
import sys
from typing import Any

import numpy as np
import torch
import transformers
from family_cases import CASES, Case
from family_gguf import gguf_model
from quantised_weights import E2M1, meant, stored

PROMPT, STEPS, SAMPLES = 20, 32, 8
SALTS = 8


def mix(x: Any) -> Any:
    x = np.asarray(x, dtype=np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def hashes(name: str, count: int) -> Any:
    """Bits of the elements of a tensor: FNV-1a of its name, then one mix per element."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 & 0xFFFFFFFF
    return mix(mix(np.array([seed], dtype=np.uint32)) + np.arange(count, dtype=np.uint32))


def values(tensor: dict[str, Any], salt: str) -> Any:
    """The values that the checkpoint's file holds."""
    bits = hashes(salt + tensor["name"], int(np.prod(tensor["shape"])))
    if tensor["dtype"] in ("U8", "F8_E4M3"):
        codes = tensor["offset"] + (bits >> np.uint32(8)) % np.uint32(tensor["scale"])
        if tensor["dtype"] == "F8_E4M3" and not tensor["name"].endswith("_scale"):
            codes |= (bits & np.uint32(1)) << np.uint32(7)
        return codes.astype(np.uint8).reshape(tensor["shape"])
    centred = (bits >> np.uint32(8)).astype(np.int32) - (1 << 23)
    scale, offset = np.float32(tensor["scale"]), np.float32(tensor["offset"])
    out = centred.astype(np.float32) * np.float32(2.0**-23) * scale + offset
    if tensor["dtype"] == "BF16":
        out = torch.from_numpy(out).bfloat16().float().numpy()
    return out.reshape(tensor["shape"])


def tensor_entry(case: Case, name: str, shape: list[int]) -> dict[str, Any]:
    """Sizes that keep activations near 1 and logits below it."""
    scale, offset, dtype = 0.0, 0.0, case.dtype
    if name.endswith("norm.weight"):
        scale, offset = 0.25, 0.0 if case.family.startswith("gemma") else 1.0
    elif "embed_tokens" in name:
        scale = 0.06
    elif name.endswith(("_blocks", "_scales")):
        dtype, scale, offset = ("U8", 256, 0) if name.endswith("_blocks") else ("U8", 3, 120)
    elif name.endswith(("bias", "sinks")):
        scale = 0.5
    else:
        columns = shape[1] if len(shape) == 3 else shape[-1]
        gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "router", "mlp.gate.")) else 1.0
        scale = float(np.float32((0.2 if "lm_head" in name else gain) * np.sqrt(3.0 / columns)))
    return {"name": name, "dtype": dtype, "shape": shape, "scale": scale, "offset": offset}


def checkpoint(case: Case, model: Any) -> list[dict[str, Any]]:
    """The tensors as published checkpoints name them, from the names that the library has in memory."""
    out = []
    for name, parameter in model.state_dict().items():
        shape = list(parameter.shape)
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if case.family == "qwen3moe" and name.endswith("experts.gate_up_proj"):
            for expert in range(shape[0]):
                for part in ("gate_proj", "up_proj"):
                    out.append((name.replace("gate_up_proj", f"{expert}.{part}.weight"), [shape[1] // 2, shape[2]]))
        elif case.family == "qwen3moe" and name.endswith("experts.down_proj"):
            out += [(name.replace("down_proj", f"{expert}.down_proj.weight"), shape[1:]) for expert in range(shape[0])]
        elif case.mxfp4 and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            count, columns, rows = shape
            out.append((name + "_blocks", [count, rows, columns // 32, 16]))
            out.append((name + "_scales", [count, rows, columns // 32]))
        else:
            out.append((name, shape))
    entries = []
    for name, shape in out:
        entry = tensor_entry(case, name, shape)
        if case.quantised and name.endswith("_proj.weight"):
            entries += stored(case.quantised, name, shape, entry["scale"] / np.sqrt(3.0))
        else:
            entries.append(entry)
    return entries


def mxfp4(blocks: Any, scales: Any) -> Any:
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    out = E2M1[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    return out.reshape(*blocks.shape[:2], -1)


def load(case: Case, model: Any, tensors: list[dict[str, Any]], salt: str) -> None:
    files = {tensor["name"]: values(tensor, salt) for tensor in tensors}
    state = {}
    for name, parameter in model.state_dict().items():
        if case.quantised and name.endswith("_proj.weight"):
            value = meant(case.quantised, name, list(parameter.shape), files)
        elif name in files:
            value = files[name]
        elif name == "lm_head.weight":
            value = files["model.embed_tokens.weight"]
        elif case.family == "qwen3moe":
            parts = ("gate_proj", "up_proj") if name.endswith("gate_up_proj") else ("down_proj",)
            stem = name.rsplit(".", 1)[0]
            value = np.stack(
                [
                    np.concatenate([files[f"{stem}.{expert}.{part}.weight"] for part in parts])
                    for expert in range(parameter.shape[0])
                ]
            )
        else:
            value = mxfp4(files[name + "_blocks"], files[name + "_scales"]).swapaxes(1, 2)
        assert list(value.shape) == list(parameter.shape), name
        state[name] = torch.from_numpy(np.ascontiguousarray(value)).double()
    model.load_state_dict(state, strict=True)


def run_with_clear_choices(case: Case, model: Any, tensors: list[Any], tokens: list[int]) -> tuple[str, Any]:
    """Logits of the weights whose experts are chosen by the widest margin: elsewhere a rounded cache flips a choice,
    which moves logits by more than rounding does."""
    margins: list[float] = []

    def note_margin(module: Any, _: Any, output: Any) -> None:
        sorted_logits = output[0].sort(dim=-1, descending=True).values
        margins.append((sorted_logits[:, module.top_k - 1] - sorted_logits[:, module.top_k]).min().item())

    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    for router in routers:
        router.register_forward_hook(note_margin)
    best, found = -1.0, ("", None)
    for salt in [str(i) for i in range(SALTS)] if routers else [""]:
        load(case, model, tensors, salt)
        margins.clear()
        logits = model(torch.tensor([tokens])).logits[0].double()
        margin = min(margins, default=0.0)
        if margin > best:
            best, found = margin, (salt, logits)
    if routers:
        print(f"{case.name}: experts are chosen by {best:.4f} at least")
    return found


@torch.no_grad()
def make(case: Case) -> dict[str, Any]:
    model_class = getattr(transformers, case.config["architectures"][0])
    # The model is that of the values: the library's own kernels of quantised weights are not asked.
    settings = {key: value for key, value in case.config.items() if key != "quantization_config"}
    config = model_class.config_class.from_dict(settings)
    config._attn_implementation = config._experts_implementation = "eager"
    model = model_class(config).double().eval()
    tensors = checkpoint(case, model)
    vocabulary = case.config["vocab_size"]
    tokens = (hashes(case.name, PROMPT + STEPS) % np.uint32(vocabulary)).tolist()
    salt, logits = run_with_clear_choices(case, model, tensors, tokens)
    print(f"{case.name}: logits std {logits.std():.3f}, largest {logits.abs().max():.2f}")
    rows = []
    for position, row in enumerate(logits):
        samples = [round(row[(37 * position + 41 * i) % vocabulary].item(), 6) for i in range(SAMPLES)]
        rows.append([int(row.argmax()), round(row.logsumexp(-1).item(), 6), *samples])
    return {
        "name": case.name,
        "config": case.config,
        "salt": salt,
        "tensors": tensors,
        "gguf": gguf_model(case, tensors),
        "prompt": PROMPT,
        "tokens": tokens,
        "rows": rows,
    }


def to_text(golden: dict[str, Any]) -> str:
    """One line per item of the long lists."""
    parts = []
    for key, value in golden.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            lines = ",\n".join("    " + json.dumps(item) for item in value)
            parts.append(f'  "{key}": [\n{lines}\n  ]')
        elif key == "gguf" and value is not None:
            lines = ",\n".join("    " + json.dumps(item) for item in value["tensors"])
            metadata = json.dumps(value["metadata"])
            parts.append(f'  "gguf": {{"metadata": {metadata}, "tensors": [\n{lines}\n  ]}}')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    folder = pathlib.Path(__file__).parent / "families"
    for case in CASES:
        if len(sys.argv) > 1 and case.name not in sys.argv[1:]:
            continue
        (folder / f"{case.name}.json").write_text(to_text(make(case)))


if __name__ == "__main__":
    main()
