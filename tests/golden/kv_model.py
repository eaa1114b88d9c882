#!/usr/bin/env python3
"""An independent model of kvant's cache bytes, from docs/kv_formats/ alone, and a comparison with the library.

    kv_model.py check KV_BYTES_PROGRAM

Casts are nearest-value searches in tables (no bit tricks); every arithmetic step is one float32 operation of numpy.
"""

import dataclasses
import itertools
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32 = np.float32
Array = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

FORMATS = ("f32", "f16", "bf16", "e4m3", "e5m2", "nvfp4")
POLICIES = {"amax": (6,), "four_over_six": (6, 4), "search": (6, 3.6, 4, 4.5, 5, 5.5, 6.5, 7, 7.5)}
CONDITIONINGS = ("none", "mean", "full")
DTYPES = ("f32", "f16", "bf16")
MODES = ("base", "exact", "aged", "queries")


# ---- Casts ----------------------------------------------------------------------------------------------------------


def minifloat_table(exponent_bits: int, mantissa_bits: int, count: int) -> npt.NDArray[np.float64]:
    """Values of the codes 0 .. count - 1 of an unsigned mini-float."""
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(count):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        if exponent == 0:
            values.append(mantissa * 2.0 ** (1 - bias - mantissa_bits))
        else:
            values.append((1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias))
    return np.array(values)


E4M3 = minifloat_table(4, 3, 0x7F)
E5M2 = minifloat_table(5, 2, 0x7C)
E2M1 = minifloat_table(2, 1, 8)


def nearest_code(magnitude: Array, table: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Index of the nearest table value; ties to the even index; above the table, its last index. NaN must not occur."""
    exact = np.minimum(magnitude.astype(np.float64), table[-1])
    upper = np.clip(np.searchsorted(table, exact), 1, len(table) - 1)
    lower = upper - 1
    to_lower, to_upper = exact - table[lower], table[upper] - exact
    take_upper = (to_upper < to_lower) | ((to_upper == to_lower) & (upper % 2 == 0))
    return np.where(take_upper, upper, lower)


def encode_fp8(x: Array, g: np.float32, table: npt.NDArray[np.float64]) -> Bytes:
    scaled = x / g
    code = nearest_code(np.nan_to_num(np.abs(scaled), nan=0.0, posinf=np.inf), table)
    return np.where(np.isnan(scaled), 0, code | np.where(np.signbit(scaled), 0x80, 0)).astype(np.uint8)


def encode_f16(x: Array) -> npt.NDArray[np.uint16]:
    half = np.clip(x, F32(-65504), F32(65504)).astype(np.float16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7E00), half)


def encode_bf16(x: Array) -> npt.NDArray[np.uint16]:
    bits = x.view(np.uint32)
    upper = bits >> 16
    rest = bits & 0xFFFF
    round_up = (rest > 0x8000) | ((rest == 0x8000) & (upper % 2 == 1))
    return np.where(np.isnan(x), upper | 0x40, upper + round_up).astype(np.uint16)


# ---- NVFP4 ----------------------------------------------------------------------------------------------------------


def encode_nvfp4(x: Array, g: np.float32, policy: str) -> tuple[Bytes, Bytes]:
    """Blocks [n, 16] to codes [n, 16] (sign in bit 3) and scales [n]."""
    x = np.where(np.isnan(x), F32(0), x)
    limit = F32(2688) * g
    x = np.clip(x, -limit, limit)
    amax = np.abs(x).max(axis=1)
    best_error = np.full(len(x), np.inf, F32)
    best_scale = np.zeros(len(x), np.uint8)
    best_codes = np.zeros(x.shape, np.uint8)
    for candidate, divisor in enumerate(POLICIES[policy]):
        scale = nearest_code(amax / (F32(divisor) * g), E4M3)
        step = E4M3[scale].astype(F32) * g
        safe_step = np.where(scale == 0, F32(1), step)
        magnitude = np.where((scale == 0)[:, None], 0, nearest_code(np.abs(x / safe_step[:, None]), E2M1))
        value = np.copysign(E2M1[magnitude].astype(F32), x)
        error = np.zeros(len(x), F32)
        for i in range(16):
            residual = value[:, i] * step - x[:, i]
            error = error + residual * residual
        better = error < best_error if candidate > 0 else np.ones(len(x), bool)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale).astype(np.uint8)
        codes = magnitude | np.where(np.signbit(x), 8, 0)
        best_codes = np.where(better[:, None], codes, best_codes).astype(np.uint8)
    return best_codes, best_scale


def pack_linear(codes: Bytes) -> Bytes:
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def pack_packed(codes: Bytes) -> Bytes:
    """Eight codes to four bytes; see docs/kv_formats/nvfp4.md."""
    words = codes.reshape(*codes.shape[:-1], -1, 8)
    sign, eem = words >> 3, words & 7
    out = np.zeros((*words.shape[:-1], 4), np.uint8)
    for byte, first, second in ((1, 0, 6), (3, 1, 7), (0, 2, 4), (2, 3, 5)):
        kind_a = (sign[..., first] << 7) | (eem[..., first] << 1)
        kind_b = sign[..., second] | (eem[..., second] << 4)
        out[..., byte] = kind_a | kind_b
    return out.reshape(*codes.shape[:-1], -1)


# ---- Conditioning ---------------------------------------------------------------------------------------------------


def hadamard(x: Array) -> Array:
    n = x.shape[-1]
    m = n & -n
    t = x.reshape(*x.shape[:-1], n // m, m).copy()
    h = 1
    while h < m:
        pairs = t.reshape(*t.shape[:-1], m // (2 * h), 2, h)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        t = np.stack([a + b, a - b], axis=-2).reshape(t.shape)
        h *= 2
    return (t * F32(1 / np.sqrt(np.float64(m)))).reshape(x.shape)


def condition_keys(k: Array, kind: str, mu: Array, zi: Array) -> Array:
    """Rows [tokens, heads, head_dim]."""
    if kind == "none":
        return k
    centred = k - mu
    return centred if kind == "mean" else hadamard(centred * zi)


# ---- Pages ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Case:
    mode: str = "base"
    k_format: str = "nvfp4"
    v_format: str = "nvfp4"
    policy: str = "amax"
    conditioning: str = "none"
    packed: bool = False
    swizzled: bool = False
    interleaved: bool = False
    hnd: bool = False
    head_dim_k: int = 64
    head_dim_v: int = 64
    heads: int = 2
    page_size: int = 16
    pages: int = 2
    dtype: str = "f32"
    k_scale: float = 1.0
    v_scale: float = 1.0

    def header(self) -> bytes:
        return struct.pack(
            "<15i2f",
            MODES.index(self.mode),
            FORMATS.index(self.k_format),
            FORMATS.index(self.v_format),
            list(POLICIES).index(self.policy),
            CONDITIONINGS.index(self.conditioning),
            self.packed,
            self.swizzled,
            self.interleaved,
            self.hnd,
            self.head_dim_k,
            self.head_dim_v,
            self.heads,
            self.page_size,
            self.pages,
            DTYPES.index(self.dtype),
            self.k_scale,
            self.v_scale,
        )


def encode_rows(x: Array, fmt: str, scale: float, case: Case) -> tuple[Bytes, Bytes]:
    """Rows [..., head_dim] to data bytes [..., row_bytes] and scale bytes [..., blocks]."""
    g = F32(scale)
    no_scales = np.zeros((*x.shape[:-1], 0), np.uint8)
    if fmt == "f32":
        return x.view(np.uint8).reshape(*x.shape[:-1], -1), no_scales
    if fmt in ("f16", "bf16"):
        half = encode_f16(x) if fmt == "f16" else encode_bf16(x)
        return np.ascontiguousarray(half).view(np.uint8).reshape(*x.shape[:-1], -1), no_scales
    if fmt in ("e4m3", "e5m2"):
        return encode_fp8(x, g, E4M3 if fmt == "e4m3" else E5M2), no_scales
    codes, scales = encode_nvfp4(x.reshape(-1, 16), g, case.policy)
    codes = codes.reshape(x.shape)
    data = pack_packed(codes) if case.packed else pack_linear(codes)
    return data, scales.reshape(*x.shape[:-1], -1)


def swizzle(scales: Bytes) -> Bytes:
    """[pages, page, heads, S]: four tokens by S blocks, seen as [4][4][S/4], stored as [4][S/4][4]."""
    pages, page, heads, blocks = scales.shape
    groups = scales.reshape(pages, page // 4, 4, heads, 4, blocks // 4)  # page, group, n, head, quarter, s
    stored = groups.transpose(0, 1, 4, 3, 5, 2)  # the quarter becomes the token, n the fastest index
    return stored.reshape(pages, page, heads, blocks)


def page_bytes(k: Array, v: Array, case: Case, exact: bool) -> Bytes:
    """Rows [tokens, heads, head_dim] to pages."""

    def by_page(x: Bytes) -> Bytes:
        return x.reshape(case.pages, case.page_size, case.heads, -1)

    k_data, k_scales = encode_rows(k, "f16" if exact else case.k_format, case.k_scale, case)
    v_data, v_scales = encode_rows(v, "f16" if exact else case.v_format, case.v_scale, case)
    planes = [by_page(plane) for plane in (k_data, k_scales, v_data, v_scales)]
    if case.swizzled and not exact:
        planes[3] = swizzle(planes[3])
    if case.hnd:
        planes = [plane.transpose(0, 2, 1, 3) for plane in planes]
    if case.interleaved and not exact:
        planes = [np.concatenate([planes[0], planes[2]], axis=-1)]
    return np.concatenate([plane.reshape(case.pages, -1) for plane in planes], axis=1)


def model_bytes(case: Case, mu: Array, z: Array, zi: Array, k: Array, v: Array) -> bytes:
    if case.mode == "queries":
        bias = np.zeros(k.shape[:-1], F32)
        if case.conditioning != "none":
            for d in range(k.shape[-1]):
                bias = bias + k[..., d] * mu[..., d]
        q = hadamard(k * z) if case.conditioning == "full" else k
        return np.concatenate([bias[..., None], q], axis=-1).tobytes()
    k = condition_keys(k, case.conditioning, mu, zi)
    if case.mode == "aged":
        k, v = (encode_f16(x).view(np.float16).astype(F32) for x in (k, v))
    return page_bytes(k, v, case, exact=case.mode == "exact").tobytes()


# ---- Inputs ---------------------------------------------------------------------------------------------------------

SPECIALS = "0 -0 inf -inf nan 1e-42 -3e-39 65504 65519 65520 -7e4 3e38 448 464 465 2688 -2689 57344 61440 0.00586"
POWERS = (-9, -10, -16, -17, -24, -25)


def random_rows(rng: np.random.Generator, shape: tuple[int, ...], special: bool) -> Array:
    x = rng.normal(size=shape).astype(F32)
    x *= np.exp2(rng.integers(-12, 6, size=(*shape[:-1], shape[-1] // 16)).repeat(16, axis=-1)).astype(F32)
    # Values on and between code points; rows of nothing else, where two candidates of a search may tie.
    grid = rng.random(shape) < rng.choice([0.2, 1.0], size=(*shape[:-1], 1))
    x = np.where(grid, (rng.integers(-52, 53, size=shape) * 0.125).astype(F32), x)
    if special:
        specials = np.concatenate([np.array(SPECIALS.split(), F32), np.exp2(np.array(POWERS, F32))])
        x = np.where(rng.random(shape) < 0.02, rng.choice(specials, size=shape), x)
    return x.astype(F32)


def to_dtype(x: Array, dtype: str) -> tuple[bytes, Array]:
    """Bytes as a model hands them over, and the same values widened."""
    if dtype == "f32":
        return x.tobytes(), x
    if dtype == "f16":
        half = x.astype(np.float16)
        return half.tobytes(), half.astype(F32)
    bits = encode_bf16(x)
    return bits.tobytes(), (bits.astype(np.uint32) << 16).view(F32)


def all_cases() -> list[Case]:
    """Every format, policy, conditioning and mode, the NVFP4 ones in both code orders; other fields at random."""
    rng = np.random.default_rng(7)
    cases = []
    for fmt, policy, conditioning, mode, packed in itertools.product(
        FORMATS, POLICIES, CONDITIONINGS, MODES, (False, True)
    ):
        nvfp4 = fmt == "nvfp4"
        if (not nvfp4 and (policy != "amax" or packed)) or (fmt in DTYPES and conditioning != "none"):
            continue
        cases.append(
            Case(
                mode,
                fmt,
                fmt,
                policy,
                conditioning,
                packed,
                swizzled=nvfp4 and rng.random() < 0.5,
                interleaved=not nvfp4 and rng.random() < 0.5,
                hnd=rng.random() < 0.5,
                head_dim_k=int(rng.choice([16, 64, 80, 96, 128, 192, 256, 512])),
                head_dim_v=int(rng.choice([64, 128])),
                heads=int(rng.integers(1, 4)),
                page_size=int(rng.choice([4, 16, 32])),
                dtype="f32" if mode == "queries" else str(rng.choice(DTYPES)),
                k_scale=float(rng.choice([1.0, 0.037, 2.0**-14, 3.5])),
                v_scale=float(rng.choice([0.001, 1.0, 0.25])),
            )
        )
    cases.append(Case("base", "e4m3", "nvfp4", "search", "full", head_dim_k=96, head_dim_v=64, heads=3))
    return cases


def check(program: str) -> int:
    rng = np.random.default_rng(20260101)
    cases = all_cases()
    expected = []
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        in_path, out_path = Path(folder) / "in", Path(folder) / "out"
        with in_path.open("wb") as file:
            for case in cases:
                tokens = case.pages * case.page_size
                mu = rng.normal(size=(case.heads, case.head_dim_k)).astype(F32)
                z = rng.uniform(0.3, 3, size=mu.shape).astype(F32)
                zi = F32(1) / z
                special = case.mode != "queries"
                k_bytes, k = to_dtype(random_rows(rng, (tokens, case.heads, case.head_dim_k), special), case.dtype)
                v_bytes, v = to_dtype(random_rows(rng, (tokens, case.heads, case.head_dim_v), special), case.dtype)
                file.write(case.header() + mu.tobytes() + z.tobytes() + zi.tobytes() + k_bytes + v_bytes)
                expected.append(model_bytes(case, mu, z, zi, k, v))
        subprocess.run([program, str(in_path), str(out_path)], check=True)
        actual = out_path.read_bytes()
    at = failures = 0
    for case, want in zip(cases, expected, strict=True):
        got = actual[at : at + len(want)]
        at += len(want)
        if got == want:
            continue
        failures += 1
        differ = [i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b]
        where = f"first at byte {differ[0]}" if differ else "the output is too short"
        print(f"{case}: {len(differ)} of {len(want)} bytes differ, {where}")
    if at != len(actual):
        print(f"the program wrote {len(actual)} bytes, not {at}")
        failures += 1
    print(f"{len(cases)} cases, {at} bytes, {failures} failures")
    return 1 if failures else 0


def check_casts() -> int:
    """The tables against ml_dtypes, where it is installed."""
    try:
        import ml_dtypes
    except ImportError:
        print("ml_dtypes is not installed: its casts were not compared")
        return 0
    rng = np.random.default_rng(1)
    x = np.abs(random_rows(rng, (200_000, 16), False).ravel())
    failures = 0
    for name, table, dtype in (("e4m3", E4M3, ml_dtypes.float8_e4m3fn), ("e5m2", E5M2, ml_dtypes.float8_e5m2)):
        inside = x[x <= table[-1]]
        differ = np.count_nonzero(nearest_code(inside, table) != inside.astype(dtype).view(np.uint8))
        failures += int(differ)
        print(f"{name}: {len(inside)} casts, {differ} differ from ml_dtypes")
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "check":
        sys.exit(__doc__)
    sys.exit(check_casts() | check(sys.argv[2]))
