"""`kvant inspect kv`: page sizes and offsets, value for value."""

import json
from collections.abc import Callable

import pytest

# format, head dim, heads, page: page bytes, bytes per token, k_data, k_scale, v_data, v_scale
PAGES = [
    ("nvfp4", 128, 8, 16, 18432, 1152, 0, 8192, 9216, 17408),
    ("bf16", 128, 8, 16, 65536, 4096, 0, None, 32768, None),
    ("e4m3", 128, 8, 16, 32768, 2048, 0, None, 16384, None),
    ("fp8", 64, 3, 32, 12288, 384, 0, None, 6144, None),
    ("nvfp4", 64, 3, 1, 216, 216, 0, 96, 108, 204),
]


@pytest.mark.parametrize("row", PAGES, ids=lambda row: f"{row[0]}-{row[1]}x{row[2]}x{row[3]}")
def test_json_has_sizes_and_offsets(kvant: Callable, row: tuple) -> None:
    form, head_dim, heads, page, page_bytes, bytes_per_token, *offsets = row
    result = kvant(
        "inspect", "kv", "--format", form, "--head-dim", head_dim, "--kv-heads", heads, "--page", page, "--json"
    )
    assert result.returncode == 0
    assert json.loads(result.stdout) == {
        "page_bytes": page_bytes,
        "bytes_per_token": bytes_per_token,
        "offsets": dict(zip(["k_data", "k_scale", "v_data", "v_scale"], offsets, strict=True)),
    }


def test_k_and_v_may_differ(kvant: Callable) -> None:
    result = kvant("inspect", "kv", "--format", "e4m3", "--v-format", "nvfp4", "--kv-heads", 1, "--page", 16, "--json")
    assert json.loads(result.stdout)["offsets"] == {"k_data": 0, "k_scale": None, "v_data": 2048, "v_scale": 3072}


def test_text_names_layout(kvant: Callable) -> None:
    assert "page bytes       18432" in kvant("inspect", "kv", "--format", "nvfp4").stdout


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--format", "int3"], "'int3'"),
        (["--format", "nvfp4", "--head-dim", "24"], "24"),
        (["--format", "nvfp4", "--page", "12"], "12"),
        (["--format", "nvfp4", "--page", "0"], "page size 0"),
        (["--format", "nvfp4", "--kv-heads", "0"], "num_kv_heads 0"),
        (["--format", "nvfp4", "--planes", "interleaved"], "nvfp4"),
        (["--format", "bf16", "--scale-order", "sm10x"], "bf16"),
        (["--format", "nvfp4", "--order", "sorted"], "'sorted'"),
    ],
)
def test_refusals_name_the_value(fails: Callable, args: list[str], named: str) -> None:
    assert named in fails(2, "inspect", "kv", *args)
