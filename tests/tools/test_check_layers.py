"""The layer check must find what it forbids, and pass what it allows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_layers

FORBIDDEN = [
    ("src/core/a.cc", '#include "attn/kv/codec.h"', "core may not include attn/kv"),
    ("src/core/a.cc", '#include "kvant/attn/kv_layout.h"', "core may not include attn"),
    ("src/attn/cpu/a.cc", '#include "ops/linear.h"', "attn/cpu may not include ops"),
    ("src/attn/cpu/a.cc", '#include "attn/cuda/decode.h"', "attn/cpu may not include attn/cuda"),
    ("src/attn/cpu/a.cc", '#include "attn/reference/oracle.h"', "attn/cpu may not include attn/reference"),
    ("src/attn/api/a.cc", '#include "attn/reference/oracle.h"', "attn/api may not include attn/reference"),
    ("src/attn/kv/a.h", '#include "kvant/engine/engine.h"', "attn/kv may not include engine"),
    ("src/ops/a.cc", '#include "kvant/attn/attention.h"', "ops may not include attn"),
    ("src/engine/a.cc", '#include "attn/cpu/decode.h"', "engine may not include attn/cpu"),
    ("src/engine/a.cc", "#include <CLI/CLI.hpp>", "<CLI/CLI.hpp> may be included by apps"),
    ("src/attn/kv/a.cc", "#include <nlohmann/json.hpp>", "<nlohmann/json.hpp> may be included by"),
    ("src/engine/a.cc", '#include "gguf.h"', "names no box"),
    ("include/kvant/attn/a.h", '#include "core/mmap_file.h"', "only public headers"),
    ("include/kvant/attn/a.h", "#include <fmt/format.h>", "a public header may include"),
    ("src/attn/cpu/a.cc", "#ifdef KVANT_WITH_CUDA", "KVANT_WITH_CUDA may appear only in"),
]

ALLOWED = [
    ("src/attn/api/a.cc", '#include "attn/cpu/decode.h"'),
    ("src/attn/cpu/a.cc", '#include "attn/kv/nvfp4.h"'),
    ("src/attn/cpu/a.cc", "#include <hwy/highway.h>"),
    ("src/engine/runner/a.cc", '#include "ops/linear.h"'),
    ("src/core/device.cc", "#if KVANT_WITH_CUDA"),
    ("include/kvant/engine/a.h", '#include "kvant/attn/kv_spec.h"'),
    ("include/kvant/core/a.h", "#include <tl/expected.hpp>"),
    ("apps/kvant/a.cc", '#include "command.h"'),
]


def tree_with(root: Path, path: str, line: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(line + "\n", encoding="utf-8")
    return root


@pytest.mark.parametrize(("path", "line", "message"), FORBIDDEN)
def test_reports_forbidden_line(tmp_path: Path, path: str, line: str, message: str) -> None:
    found = list(check_layers.violations(tree_with(tmp_path, path, line)))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:1: ")
    assert message in found[0]


@pytest.mark.parametrize(("path", "line"), ALLOWED)
def test_passes_allowed_line(tmp_path: Path, path: str, line: str) -> None:
    assert list(check_layers.violations(tree_with(tmp_path, path, line))) == []


def test_the_tree_is_clean() -> None:
    assert list(check_layers.violations(Path(__file__).resolve().parents[2])) == []
