"""`kvant kv quantize` and `dequantize` against an independent model of the formats, bit for bit."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import kv_model

FORMATS = ["f32", "f16", "bf16", "e4m3", "e5m2", "nvfp4"]


def rows(num_rows: int, head_dim: int) -> np.ndarray:
    """Values over many magnitudes, zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(head_dim)
    magnitudes = 10.0 ** rng.uniform(-6, 4, (num_rows, 1))
    values = (rng.standard_normal((num_rows, head_dim)) * magnitudes).astype(np.float32)
    values[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30]
    return values


def quantize(kvant: Callable, folder: Path, values: np.ndarray, form: str, *options: object) -> bytes:
    source, target = folder / "rows.f32", folder / "rows.out"
    source.write_bytes(values.tobytes())
    head_dim = values.shape[1]
    result = kvant(
        "kv", "quantize", "--format", form, "--head-dim", head_dim, "--in", source, "--out", target, *options
    )
    assert result.returncode == 0, result.stderr
    return target.read_bytes()


def expected(values: np.ndarray, form: str, **options: object) -> bytes:
    case = kv_model.Case(
        policy=str(options.get("policy", "amax")), packed=options.get("order") == "packed", head_dim_k=values.shape[1]
    )
    with np.errstate(all="ignore"):
        data, scales = kv_model.encode_rows(values, form, float(options.get("scale", 1.0)), case)
    return data.tobytes() + scales.tobytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_bytes_of_every_format(kvant: Callable, tmp_path: Path, form: str, head_dim: int) -> None:
    values = rows(300, head_dim)
    assert quantize(kvant, tmp_path, values, form) == expected(values, form)


@pytest.mark.parametrize("policy", ["amax", "four_over_six", "search"])
@pytest.mark.parametrize("order", ["linear", "packed"])
def test_nvfp4_policies_orders_and_scale(kvant: Callable, tmp_path: Path, policy: str, order: str) -> None:
    values = rows(257, 64)
    options = {"policy": policy, "order": order, "scale": 0.0375}
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    assert quantize(kvant, tmp_path, values, "nvfp4", *flags) == expected(values, "nvfp4", **options)


@pytest.mark.parametrize("order", ["linear", "packed"])
def test_nvfp4_round_trip_keeps_code_points(kvant: Callable, tmp_path: Path, order: str) -> None:
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 6], np.float32)
    scales = 2.0 ** np.arange(-4, 5, dtype=np.float32)
    values = np.outer(scales, codes).astype(np.float32)
    quantize(kvant, tmp_path, values, "nvfp4", "--order", order)
    result = kvant(
        *["kv", "dequantize", "--format", "nvfp4", "--head-dim", 16, "--order", order],
        *["--in", tmp_path / "rows.out", "--out", tmp_path / "back.f32"],
    )
    assert result.returncode == 0, result.stderr
    back = np.frombuffer((tmp_path / "back.f32").read_bytes(), np.float32).reshape(values.shape)
    np.testing.assert_array_equal(back, values)


def test_f32_round_trip_is_the_identity(kvant: Callable, tmp_path: Path) -> None:
    values = rows(5, 32)
    assert quantize(kvant, tmp_path, values, "f32") == values.tobytes()


def test_refusals(fails: Callable, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(bytes(4 * 64))

    def refuse(code: int, *options: object, head_dim: int = 64, form: str = "nvfp4", path: Path = source) -> str:
        command = ["kv", "quantize", "--format", form, "--head-dim", head_dim, "--in", path, "--out", target]
        line = fails(code, *command, *options)
        assert not target.exists()
        return line

    assert "'fp3'" in refuse(2, form="fp3")
    assert "head_dim_k 24" in refuse(2, head_dim=24)
    assert "256 bytes" in refuse(1, head_dim=80)
    assert "--scale 0" in refuse(2, "--scale", 0)
    assert "--scale inf" in refuse(2, "--scale", "inf")
    assert "--scale 2" in refuse(2, "--scale", 2, form="bf16")
    assert "'best'" in refuse(2, "--policy", "best")
    assert "e4m3" in refuse(2, "--order", "packed", form="e4m3")
    assert "missing" in refuse(1, path=tmp_path / "missing")
    refuse(2, path=tmp_path)
    source.write_bytes(b"")
    refuse(1)


def test_unwritable_target_leaves_nothing_behind(fails: Callable, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(bytes(256))
    target = tmp_path / "no-such-folder" / "out"
    line = fails(1, "kv", "quantize", "--format", "f32", "--head-dim", 64, "--in", source, "--out", target)
    assert str(target) in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]
