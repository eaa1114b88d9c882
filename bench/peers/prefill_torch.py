#!/usr/bin/env python3
"""Causal prefill by PyTorch's attention backends over contiguous keys, as JSON: the peers of the prefill suite.

bench/peers/prefill_torch.py --out peers_prefill.json
"""

import argparse
import json
from pathlib import Path

import torch
from graph_timing import graph_microseconds
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
# batch, length of prompts, head dim; 32 query heads on 8 KV heads.
SHAPES = [(8, 4096, 128), (1, 16384, 128), (32, 1024, 128), (8, 4096, 64), (1, 4096, 128)]
Q_HEADS, KV_HEADS, SETS, REPEATS = 32, 8, 5, 7


def microseconds(backend: SDPBackend, batch: int, length: int, head_dim: int) -> float:
    def heads(count: int) -> torch.Tensor:
        return torch.randn(batch, count, length, head_dim, device="cuda", dtype=torch.bfloat16)

    q = heads(Q_HEADS)
    sets = [(heads(KV_HEADS), heads(KV_HEADS)) for _ in range(SETS)]

    def step(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with sdpa_kernel(backend):
        step(*sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for k, v in sets:
                step(k, v)
    return graph_microseconds(graph, SETS, REPEATS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    rows = []
    for batch, length, head_dim in SHAPES:
        flops = 4 * head_dim * Q_HEADS * batch * length * (length + 1) / 2
        for name, backend in BACKENDS.items():
            row = {"peer": name, "batch": batch, "context": length, "q_len": length, "head_dim": head_dim}
            try:
                us = microseconds(backend, batch, length, head_dim)
                row |= {"us": round(us, 2), "tflops": round(flops / us * 1e-6, 1)}
            except RuntimeError as error:
                row |= {"refused": str(error).splitlines()[0]}
            print(row, flush=True)
            rows.append(row)
    result = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "rows": rows,
    }
    Path(parser.parse_args().out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
