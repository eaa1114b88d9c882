#!/usr/bin/env python3
"""Causal prefill by other libraries on one GPU, as JSON: the peers of the prefill suite.

bench/peers/prefill_torch.py --out peers_prefill.json

PyTorch's cuDNN and FlashAttention 2, and FlashAttention 3, read contiguous bf16 keys; FlashInfer's FA2 reads shuffled
pages of 64 tokens in bf16, e4m3 and nvfp4. What is not installed is left out. Times are medians of graph replays over
disjoint sets of keys.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from graph_timing import graph_microseconds, graph_of
from peer_libraries import TYPES, machine, optional
from torch.nn.attention import SDPBackend, sdpa_kernel

# batch, length of prompts, head dim; 32 query heads on 8 KV heads.
SHAPES = [(8, 4096, 128), (1, 16384, 128), (32, 1024, 128), (8, 4096, 64), (1, 4096, 128)]
Q_HEADS, KV_HEADS, PAGE, SETS, REPEATS = 32, 8, 64, 5, 7

Step = Callable[[], Any]


FLASHINFER_PREFILL = optional("flashinfer.prefill")
FLASH_ATTENTION_3 = optional("fa3_fwd_interface")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def sdpa(batch: int, length: int, head_dim: int) -> list[Step]:
    q = normal(batch, Q_HEADS, length, head_dim)

    def step() -> Step:
        k, v = (normal(batch, KV_HEADS, length, head_dim) for _ in range(2))
        return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return [step() for _ in range(SETS)]


def flash_attention_3(batch: int, length: int, head_dim: int) -> list[Step]:
    q = normal(batch, length, Q_HEADS, head_dim)

    def step() -> Step:
        k, v = (normal(batch, length, KV_HEADS, head_dim) for _ in range(2))
        return lambda: FLASH_ATTENTION_3.flash_attn_func(q, k, v, causal=True)

    return [step() for _ in range(SETS)]


def flashinfer_fa2(kv_format: str, batch: int, length: int, head_dim: int) -> list[Step]:
    if head_dim != 128:
        raise RuntimeError("its kernels were built for head dim 128")
    pages, kv_type = batch * length // PAGE, TYPES[kv_format]
    q = normal(batch * length, Q_HEADS, head_dim)
    out = torch.empty_like(q)
    workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = FLASHINFER_PREFILL.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa2")
    starts = torch.arange(batch + 1, dtype=torch.int32)
    wrapper.plan(
        starts * length, starts * (length // PAGE), torch.randperm(pages, device="cuda").int(),
        torch.full((batch,), PAGE, dtype=torch.int32), Q_HEADS, KV_HEADS, head_dim, PAGE, causal=True,
        sm_scale=head_dim**-0.5, q_data_type=torch.bfloat16, kv_data_type=kv_type, o_data_type=torch.bfloat16,
    )  # fmt: skip

    def plane() -> torch.Tensor:
        if kv_format == "nvfp4":
            return torch.randint(0, 256, (pages, KV_HEADS, PAGE, head_dim // 2), dtype=torch.uint8, device="cuda")
        return normal(pages, KV_HEADS, PAGE, head_dim).to(kv_type)

    def step() -> Step:
        cache, options = (plane(), plane()), {}
        if kv_format == "nvfp4":
            shape = (pages, KV_HEADS, PAGE, head_dim // 16)
            codes = [torch.randint(0x28, 0x38, shape, dtype=torch.uint8, device="cuda") for _ in range(2)]
            options = {"kv_cache_sf": tuple(c.view(torch.float8_e4m3fn) for c in codes)}
        return lambda: wrapper.run(q, cache, out=out, **options)

    return [step() for _ in range(SETS)]


def microseconds(steps: list[Step]) -> float:
    return graph_microseconds(graph_of(steps, SETS), SETS, REPEATS)


def peers() -> list[tuple[str, str, Callable[[int, int, int], float]]]:
    def by(backend: SDPBackend) -> Callable[[int, int, int], float]:
        def measure(*shape: int) -> float:
            with sdpa_kernel(backend):
                return microseconds(sdpa(*shape))

        return measure

    found = [("cudnn", "bf16", by(SDPBackend.CUDNN_ATTENTION)), ("flash2", "bf16", by(SDPBackend.FLASH_ATTENTION))]
    if FLASH_ATTENTION_3 is not None:
        found.append(("flash_attention_3", "bf16", lambda *shape: microseconds(flash_attention_3(*shape))))
    if FLASHINFER_PREFILL is not None:
        for f in TYPES:
            found.append(("flashinfer_fa2", f, lambda *shape, f=f: microseconds(flashinfer_fa2(f, *shape))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--date", default="unknown")
    options = parser.parse_args()
    rows = []
    for batch, length, head_dim in SHAPES:
        flops = 4 * head_dim * Q_HEADS * batch * length * (length + 1) / 2
        for name, kv_format, measure in peers():
            row: dict[str, Any] = {
                "peer": name, "format": kv_format, "batch": batch, "context": length, "q_len": length,
                "head_dim": head_dim,
            }  # fmt: skip
            try:
                us = measure(batch, length, head_dim)
                row |= {"us": round(us, 2), "tflops": round(flops / us * 1e-6, 1)}
            except RuntimeError as error:
                row |= {"refused": str(error).splitlines()[0]}
            print(row, flush=True)
            rows.append(row)
            torch.cuda.empty_cache()
    result = machine() | {"date": options.date, "rows": rows}
    Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
