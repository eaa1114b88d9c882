#!/usr/bin/env python3
"""Writes kv_scales/*.json: checkpoints with KV scales, and logits of a reference that applies them.

The model is transformers' in fp64. Keys (after RoPE) and values go through the numpy model of kvant's cache formats
with the checkpoint's scales before attention reads them, as an FP8 or NVFP4 cache does without edges and conditioning.
Files have the form of families/*.json; config.json declares the scheme.

    pip install torch transformers numpy
    python3 tests/golden/make_kv_scale_goldens.py
"""

import pathlib
from typing import Any

import kv_model
import make_family_goldens as families
import numpy as np
import torch
import transformers
from family_cases import Case, llama

F32 = np.float32
# name, bits of the declared scheme, scales of K and V by layer. Large keys saturate and small values lose bits, so that
# other scales give other logits.
CASES = [
    ("e4m3", 8, [(0.004, 20.0), (0.006, 0.5)]),
    ("nvfp4", 4, [(0.0005, 10.0), (0.001, 0.1)]),
]


def rounded(x: Any, fmt: str, g: np.float32) -> Any:
    if fmt == "e4m3":
        code = kv_model.encode_fp8(x, g, kv_model.E4M3)
        return np.copysign(kv_model.E4M3[code & 0x7F], np.where(code & 0x80, -1.0, 1.0)).astype(F32) * g
    codes, scales = kv_model.encode_nvfp4(x.reshape(-1, 16), g, "amax")
    values = np.copysign(kv_model.E2M1[codes & 7], np.where(codes & 8, -1.0, 1.0)).astype(F32)
    return (values * (kv_model.E4M3[scales].astype(F32) * g)[:, None]).reshape(x.shape)


class QuantisedCache(transformers.DynamicCache):
    def __init__(self, fmt: str, scales: list[tuple[float, float]]) -> None:
        super().__init__()
        self.fmt, self.scales = fmt, scales

    def update(self, keys: Any, values: Any, layer: int, *rest: Any, **more: Any) -> Any:
        pair = [
            torch.from_numpy(rounded(x.float().numpy(), self.fmt, F32(g)).astype(np.float64))
            for x, g in zip((keys, values), self.scales[layer], strict=True)
        ]
        return super().update(*pair, layer, *rest, **more)


@torch.no_grad()
def make(name: str, bits: int, scales: list[tuple[float, float]]) -> dict[str, Any]:
    scheme = {"dynamic": False, "num_bits": bits, "type": "float"}
    case = Case(f"kv_scales_{name}", "llama", llama())
    model_class = transformers.LlamaForCausalLM
    config = model_class.config_class.from_dict(dict(case.config))
    config._attn_implementation = "eager"
    model = model_class(config).double().eval()
    tensors = families.checkpoint(case, model)
    families.load(case, model, tensors, "")
    tokens = (families.hashes(case.name, families.PROMPT + families.STEPS) % np.uint32(config.vocab_size)).tolist()
    logits = model(torch.tensor([tokens]), past_key_values=QuantisedCache(name, scales)).logits[0]
    plain = model(torch.tensor([tokens]), past_key_values=QuantisedCache(name, [(1.0, 1.0)] * 2)).logits[0]
    print(f"{name}: logits std {logits.std():.3f}, scales of 1 move them by {(logits - plain).abs().max():.3f}")
    for layer, pair in enumerate(scales):
        for which, scale in zip("kv", pair, strict=True):
            tensors.append(
                {
                    "name": f"model.layers.{layer}.self_attn.{which}_proj.{which}_scale",
                    "dtype": "F32",
                    "shape": [],
                    "scale": 0.0,
                    "offset": scale,
                }
            )
    rows = []
    for position, row in enumerate(logits):
        samples = [round(row[(37 * position + 41 * i) % config.vocab_size].item(), 6) for i in range(families.SAMPLES)]
        rows.append([int(row.argmax()), round(row.logsumexp(-1).item(), 6), *samples])
    return {
        "name": case.name,
        "config": case.config | {"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": scheme}},
        "salt": "",
        "tensors": tensors,
        "gguf": None,
        "prompt": families.PROMPT,
        "tokens": tokens,
        "rows": rows,
    }


def main() -> None:
    folder = pathlib.Path(__file__).parent / "kv_scales"
    folder.mkdir(exist_ok=True)
    for case in CASES:
        (folder / f"{case[0]}.json").write_text(families.to_text(make(*case)))


if __name__ == "__main__":
    main()
