#!/usr/bin/env python3
"""Decode attention of other libraries on one GPU, as JSON: the peers of the grid suite.

bench/peers/decode_torch.py --beside attention_decode.json --out peers_decode.json

FlashInfer (XQA, and FA2 on tensor cores) reads pages of 64 tokens, its best size here, shuffled; FlashAttention 3 and
cuDNN, through PyTorch, read contiguous keys. What is not installed is left out. Times are medians of graph replays over
disjoint sets of keys that together exceed the L2 cache, as in bench/suite, whose file gives the time of a
plain read of the same bytes. Queries are bf16, but FlashAttention 3's and XQA's of an e4m3 cache, which are e4m3.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from graph_timing import graph_microseconds, graph_of
from peer_libraries import TYPES, machine, optional
from torch.nn.attention import SDPBackend, sdpa_kernel

Q_HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64
SCALE = DIM**-0.5
BATCHES, CONTEXTS, Q_LENS = (1, 4, 16, 64, 256), (1024, 4096, 16384, 65536), (1, 4)
PAST_L2, REPEATS = 600 << 20, 7
BYTES = {"bf16": 2 * DIM, "e4m3": DIM, "nvfp4": DIM // 2 + DIM // 16}
PEERS = {
    "bf16": ("flashinfer_xqa", "flashinfer_fa2", "flash_attention_3", "cudnn"),
    "e4m3": ("flashinfer_xqa", "flashinfer_fa2", "flash_attention_3"),
    "nvfp4": ("flashinfer_fa2",),
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


FLASHINFER_DECODE = optional("flashinfer.decode")
FLASH_ATTENTION_3 = optional("fa3_fwd_interface")


class Pool:
    """Keys and values of one format, one array each; every shape is a view of their beginning."""

    def __init__(self, kv_format: str, tokens: int) -> None:
        self.kv_format, self.tokens = kv_format, tokens
        self.planes = [self.random(DIM // 2 if kv_format == "nvfp4" else DIM) for _ in range(2)]
        self.scales: list[torch.Tensor] = []
        if kv_format == "nvfp4":
            # The normals of e4m3 from 0.25 to 0.94.
            codes = [torch.randint(0x28, 0x38, (tokens * KV_HEADS * DIM // 16,), device="cuda") for _ in range(2)]
            self.scales = [c.to(torch.uint8).view(torch.float8_e4m3fn) for c in codes]

    def random(self, width: int) -> torch.Tensor:
        count, step = self.tokens * KV_HEADS * width, 1 << 27
        plane = torch.empty(count, dtype=TYPES[self.kv_format], device="cuda")
        for first in range(0, count, step):
            part = plane[first : first + step]
            if self.kv_format == "nvfp4":
                part.random_(0, 256)
            else:
                part.copy_(torch.randn(part.numel(), device="cuda", dtype=torch.bfloat16))
        return plane

    def cut(self, plane: torch.Tensor, index: int, shape: tuple[int, ...]) -> torch.Tensor:
        count = 1
        for extent in shape:
            count *= extent
        return plane[index * count : (index + 1) * count].view(shape)


class Case:
    """One shape: `sets` disjoint parts of a pool, and queries."""

    def __init__(self, pool: Pool, batch: int, context: int, q_len: int) -> None:
        self.pool, self.batch, self.context, self.q_len = pool, batch, context, q_len
        self.kv_bytes = 2 * batch * context * KV_HEADS * BYTES[pool.kv_format]
        self.sets = min(32, max(2, PAST_L2 // self.kv_bytes + 1))
        self.pages = batch * context // PAGE
        generator = torch.Generator(device="cuda").manual_seed(7)
        self.table = torch.randperm(self.pages, generator=generator, device="cuda").int().view(batch, -1)
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
        self.q = torch.randn(batch * q_len, Q_HEADS, DIM, generator=generator, device="cuda").bfloat16()
        self.out = torch.empty_like(self.q)
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device="cuda")

    def paged(self, planes: list[torch.Tensor], index: int) -> tuple[torch.Tensor, ...]:
        width = planes[0].numel() // (self.pool.tokens * KV_HEADS)
        return tuple(self.pool.cut(p, index, (self.pages, KV_HEADS, PAGE, width)) for p in planes)

    def flashinfer_xqa(self, index: int) -> Callable[[], torch.Tensor]:
        cache = self.paged(self.pool.planes, index)
        mask = None
        if self.q_len > 1:
            words = (self.q_len + 31) // 32
            bits = torch.zeros(self.q_len, words, dtype=torch.int64)
            for row in range(self.q_len):
                for key in range(row + 1):
                    bits[row, key // 32] |= 1 << key % 32
            packed = bits.to(torch.uint32).view(torch.uint16).unsqueeze(0)
            mask = packed.expand(self.batch, -1, -1).contiguous().cuda()

        def call() -> torch.Tensor:
            FLASHINFER_DECODE.xqa_batch_decode_with_kv_cache(
                self.q, cache, self.workspace, self.table, self.lengths, self.context, bmm1_scale=SCALE, bmm2_scale=1.0,
                out=self.out, kv_layout="HND", q_len_per_req=self.q_len, mask=mask,
            )  # fmt: skip
            return self.out

        return call

    def flashinfer_fa2(self, index: int) -> Callable[[], torch.Tensor]:
        if index == 0:
            wrapper = FLASHINFER_DECODE.BatchDecodeWithPagedKVCacheWrapper(
                self.workspace, "HND", use_tensor_cores=True, backend="fa2"
            )
            starts = torch.arange(self.batch + 1, dtype=torch.int32) * (self.context // PAGE)
            wrapper.plan(
                starts, self.table.flatten(), torch.full((self.batch,), PAGE, dtype=torch.int32), Q_HEADS, KV_HEADS,
                DIM, PAGE, sm_scale=SCALE, q_data_type=torch.bfloat16, kv_data_type=TYPES[self.pool.kv_format],
                o_data_type=torch.bfloat16, q_len_per_req=self.q_len,
            )  # fmt: skip
            self.wrapper = wrapper
        cache = self.paged(self.pool.planes, index)
        options = {"kv_cache_sf": self.paged(self.pool.scales, index)} if self.pool.scales else {}
        return lambda: self.wrapper.run(self.q, cache, out=self.out, **options)

    def contiguous(self, index: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
        return [self.pool.cut(p, index, shape) for p in self.pool.planes]

    def flash_attention_3(self, index: int) -> Callable[[], torch.Tensor]:
        k, v = self.contiguous(index, (self.batch, self.context, KV_HEADS, DIM))
        q = self.q.view(self.batch, self.q_len, Q_HEADS, DIM).to(TYPES[self.pool.kv_format])

        def call() -> torch.Tensor:
            result = FLASH_ATTENTION_3.flash_attn_with_kvcache(
                q, k, v, cache_seqlens=self.lengths, softmax_scale=SCALE, causal=self.q_len > 1
            )
            return result[0] if isinstance(result, tuple) else result

        return call

    def cudnn(self, index: int) -> Callable[[], torch.Tensor]:
        if self.q_len > 1:
            raise RuntimeError("PyTorch masks the first rows' keys, not the last ones'")
        k, v = self.contiguous(index, (self.batch, KV_HEADS, self.context, DIM))
        q = self.q.view(self.batch, 1, Q_HEADS, DIM).transpose(1, 2)

        def call() -> torch.Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=SCALE, enable_gqa=True)

        return call

    def error(self, peer: str, out: torch.Tensor) -> float:
        """Relative error of the first request of set 0, against fp32 on what is stored."""
        if peer == "flash_attention_3":
            k, v = (x[0].float() for x in self.contiguous(0, (self.batch, self.context, KV_HEADS, DIM)))
        elif peer == "cudnn":
            k, v = (x[0].transpose(0, 1).float() for x in self.contiguous(0, (self.batch, KV_HEADS, self.context, DIM)))
        else:
            k, v = self.gathered()
        q = self.q[: self.q_len].float().view(self.q_len, KV_HEADS, Q_HEADS // KV_HEADS, DIM)
        scores = torch.einsum("qhgd,nhd->qhgn", q, k) * SCALE
        last = self.context - self.q_len + torch.arange(self.q_len, device="cuda")
        hidden = torch.arange(self.context, device="cuda")[None, :] > last[:, None]
        scores.masked_fill_(hidden[:, None, None, :], float("-inf"))
        expected = torch.einsum("qhgn,nhd->qhgd", scores.softmax(-1), v).flatten()
        actual = out.reshape(self.batch, -1)[0].float()
        return float((actual - expected).norm() / expected.norm())

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        result = []
        for plane, scales in zip(self.pool.planes, self.pool.scales or [None, None], strict=True):
            pages = self.paged([plane], 0)[0][self.table[0].long()]
            if scales is None:
                values = pages.float()
            else:
                table = torch.tensor(E2M1 + tuple(-x for x in E2M1), device="cuda")
                codes = torch.stack([pages & 15, pages >> 4], -1).flatten(-2)
                factors = self.paged([scales], 0)[0][self.table[0].long()].float()
                values = table[codes.long()] * factors.repeat_interleave(16, -1)
            result.append(values.transpose(1, 2).reshape(self.context, KV_HEADS, DIM))
        return result[0], result[1]

    def measure(self, peer: str) -> dict[str, Any]:
        calls = [getattr(self, peer)(index) for index in range(self.sets)]
        row: dict[str, Any] = {}
        out = calls[0]()
        if self.batch <= 4 and self.context == 1024:
            row["error"] = float(f"{self.error(peer, out):.2g}")
        wanted = min(64, max(1, int(5e3 / (self.kv_bytes / 4e6))))
        launches = (wanted + self.sets - 1) // self.sets * self.sets
        graph = graph_of(calls, launches)
        return {"us": round(graph_microseconds(graph, launches, REPEATS), 2)} | row


def shapes() -> Iterator[tuple[int, int, int]]:
    for q_len in Q_LENS:
        for context in CONTEXTS:
            for batch in BATCHES:
                yield batch, context, q_len


def read_times(path: str | None) -> dict[tuple[Any, ...], float]:
    if path is None:
        return {}
    plain = [r for r in json.loads(Path(path).read_text(encoding="utf-8"))["rows"] if not r["mixed"]]
    return {(r["format"], r["batch"], r["context"]): r["read_us"] for r in plain}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--beside", help="attention_decode.json of the same run")
    parser.add_argument("--tokens", type=int, default=9 << 20, help="size of a pool")
    parser.add_argument("--seconds", type=float, default=600, help="a format begins no shape after its part of them")
    parser.add_argument("--shapes", help="batch x context, comma-separated, such as 4x1024; all without")
    parser.add_argument("--date", default="unknown")
    options = parser.parse_args()
    reads, began = read_times(options.beside), time.monotonic()
    rows: list[dict[str, Any]] = []
    wanted = options.shapes.split(",") if options.shapes else None
    all_peers, ended = sum(len(peers) for peers in PEERS.values()), 0
    for kv_format, peers in PEERS.items():
        pool = Pool(kv_format, options.tokens)
        ended += len(peers)
        for batch, context, q_len in shapes():
            if time.monotonic() - began > options.seconds * ended / all_peers:
                break
            # The plain read's arena holds two sets in 30 GiB.
            if 2 * batch * context > pool.tokens or (wanted and f"{batch}x{context}" not in wanted):
                continue
            case = Case(pool, batch, context, q_len)
            read_us = reads.get((kv_format, batch, context))
            for peer in peers:
                paged = peer.startswith("flashinfer")
                row: dict[str, Any] = {
                    "peer": peer, "format": kv_format, "q_heads": Q_HEADS, "kv_heads": KV_HEADS, "head_dim": DIM,
                    "q_len": q_len, "batch": batch, "context": context, "page": PAGE if paged else None,
                    "layout": "hnd" if paged else "contiguous", "mixed": False, "kv_bytes": case.kv_bytes,
                }  # fmt: skip
                if (FLASHINFER_DECODE if paged else True if peer == "cudnn" else FLASH_ATTENTION_3) is None:
                    continue
                try:
                    row |= case.measure(peer)
                    if read_us is not None:
                        row |= {"fraction_of_read": round(read_us / row["us"], 3)}
                except RuntimeError as error:
                    row |= {"refused": str(error).splitlines()[0]}
                rows.append(row)
            best = min((r["us"] for r in rows[-len(peers) :] if "us" in r), default=0)
            print(f"{kv_format} {batch} x {context} q{q_len}: {best} us", flush=True)
        del pool, case
        torch.cuda.empty_cache()
    result = machine() | {"date": options.date, "rows": rows}
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps(result | {"rows": []}).removesuffix("]}")
    Path(options.out).write_text(f"{head}\n{lines}\n]}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
