#!/usr/bin/env python3
"""Writes gguf_dequant.txt: random blocks of every encoding that the reader expands and their values.

The values are those of the `gguf` package. A line is: type, block bytes in hex,
expanded fp32 values as hex bit patterns.

    pip install gguf numpy
    python3 tests/golden/make_gguf_goldens.py
"""

import pathlib

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

# Byte offsets of the f16 scales of a block, which random bits would make NaN or huge.
SCALES = {
    Type.F16: range(0, 64, 2),
    Type.BF16: (),
    Type.Q8_0: (0,),
    Type.Q4_0: (0,),
    Type.Q4_1: (0, 2),
    Type.Q5_0: (0,),
    Type.Q5_1: (0, 2),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.MXFP4: (),
}


def main() -> None:
    rng = np.random.default_rng(20240607)
    lines = []
    for kind, offsets in SCALES.items():
        elements, size = GGML_QUANT_SIZES[kind]
        if elements == 1:
            elements, size = 32, 64
        for _ in range(2):
            block = rng.integers(0, 256, size, dtype=np.uint8)
            for offset in offsets:
                block[offset : offset + 2] = np.array([rng.normal() * 0.1], dtype=np.float16).view(np.uint8)
            if kind == Type.BF16:
                block = (rng.normal(size=32).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            if kind == Type.MXFP4:
                block[0] = rng.integers(115, 135)
            values = dequantize(block, kind).astype(np.float32).view(np.uint32)
            assert values.size == elements
            lines.append(f"{kind.name} {block.tobytes().hex()} {''.join(f'{v:08x}' for v in values)}")
    (pathlib.Path(__file__).parent / "gguf_dequant.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
