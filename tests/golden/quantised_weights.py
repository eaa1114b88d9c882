"""How quantised checkpoints store a matrix: which tensors stand for it, and the values that they mean."""

from typing import Any

import ml_dtypes
import numpy as np

Entry = dict[str, Any]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
FP8_BLOCK, NVFP4_BLOCK = 128, 16
# Root of the mean square of random codes: of e4m3 up to 1, of e2m1, and of the block scales below.
FP8_SIZE, NVFP4_SIZE, NVFP4_SCALE_SIZE = 0.31, 2.93, 1.13


def codes(name: str, shape: list[int], dtype: str, first: int, count: int) -> Entry:
    """Random bytes from `first` on; those of F8_E4M3 have random signs if they are not scales."""
    return {"name": name, "dtype": dtype, "shape": shape, "scale": count, "offset": first}


def scales(name: str, shape: list[int], size: float, spread: float = 0.5) -> Entry:
    return {"name": name, "dtype": "F32", "shape": shape, "scale": spread * size, "offset": size}


def fp8(name: str, shape: list[int], scale_name: str, scale_shape: list[int], size: float) -> list[Entry]:
    return [codes(name, shape, "F8_E4M3", 0, 57), scales(scale_name, scale_shape, size / FP8_SIZE)]


def nvfp4(name: str, shape: list[int], codes_name: str, global_scale: Entry) -> list[Entry]:
    rows, columns = shape
    return [
        codes(codes_name, [rows, columns // 2], "U8", 0, 256),
        codes(name + "_scale", [rows, columns // NVFP4_BLOCK], "F8_E4M3", 48, 16),
        global_scale,
    ]


def stored(form: str, name: str, shape: list[int], size: float) -> list[Entry]:
    """Entries of the tensors of matrix `name`, whose values are to be about `size`."""
    rows, columns = shape
    input_scale = scales(name.replace("weight", "input_scale"), [], 0.5, 0.0)
    whole = size / NVFP4_SIZE / NVFP4_SCALE_SIZE
    match form:
        case "modelopt_fp8":
            return [*fp8(name, shape, name + "_scale", [], size), input_scale]
        case "compressed_fp8":
            return fp8(name, shape, name + "_scale", [rows, 1], size)
        case "block_fp8":
            blocks = [-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)]
            return fp8(name, shape, name + "_scale_inv", blocks, size)
        case "modelopt_nvfp4":
            return [*nvfp4(name, shape, name, scales(name + "_scale_2", [], whole, 0.0)), input_scale]
        case "compressed_nvfp4":
            inverse = scales(name + "_global_scale", [1], 1 / whole, 0.0)
            return nvfp4(name, shape, name + "_packed", inverse)
    raise ValueError(form)


def e4m3(bits: Any) -> Any:
    return bits.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def spread(scale: Any, shape: list[int]) -> Any:
    """Scales of rows or blocks, one per element."""
    if scale.size == 1:
        return scale.reshape(())
    if scale.shape[1] == 1 and scale.shape[0] == shape[0]:
        return scale
    return np.repeat(np.repeat(scale, FP8_BLOCK, 0), FP8_BLOCK, 1)[: shape[0], : shape[1]]


def meant(form: str, name: str, shape: list[int], files: dict[str, Any]) -> Any:
    """The matrix that the stored tensors mean. `files`: their contents; codes as bytes."""
    if "fp8" in form:
        scale = files[name + ("_scale_inv" if form == "block_fp8" else "_scale")].astype(np.float64)
        return e4m3(files[name]) * spread(scale, shape)
    packed = files[name + "_packed"] if form == "compressed_nvfp4" else files[name]
    values = E2M1[np.stack([packed & 15, packed >> 4], axis=-1)].reshape(shape).astype(np.float64)
    values = values * np.repeat(e4m3(files[name + "_scale"]), NVFP4_BLOCK, 1)
    if form == "compressed_nvfp4":
        return values / float(files[name + "_global_scale"].item())
    return values * float(files[name + "_scale_2"].item())
