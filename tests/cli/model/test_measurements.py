"""`inspect model`, `calibrate`, `bench`, `eval kv`: field names and plain truths, not speeds."""

import json
from collections.abc import Callable
from pathlib import Path


def test_inspect_model(kvant: Callable, model: Path) -> None:
    result = kvant("inspect", "model", model, "--kv", "bf16", "--kv", "nvfp4", "--tokenizer", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["architecture"] == "llama"
    assert len(facts["layers"]) == facts["num_layers"] == 30
    layer = facts["layers"][29]
    assert (layer["q_heads"], layer["kv_heads"], layer["head_dim_k"], layer["window"]) == (9, 3, 64, 0)
    assert [row["bytes_per_token"] for row in facts["kv"]] == [23040, 6480]
    assert facts["kv"][0]["bytes_per_32k"] == 23040 * 32768
    assert facts["tokenizer"]["vocabulary_size"] == 49152
    assert facts["tokenizer"]["pretokenizer"] == "smollm"
    assert "0-29" in kvant("inspect", "model", model).stdout


def test_bench_model(kvant: Callable, model: Path) -> None:
    result = kvant(
        *["bench", "model", model, "--kv", "bf16", "--kv", "nvfp4", "--depth", 0, 300, "--prompt", 32],
        *["--generate", 4, "--repetitions", 1, "--threads", 2, "--json"],
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report) == {"rows", "read_gb_s"}
    assert report["read_gb_s"] > 0
    assert [(row["kv"], row["depth"]) for row in report["rows"]] == [
        *(("bf16", 0), ("bf16", 300)),
        *(("nvfp4", 0), ("nvfp4", 300)),
    ]
    for row in report["rows"]:
        assert set(row) == {
            *("kv", "weights", "threads", "device", "prompt", "depth", "batch"),
            *("pp_tokens_per_s", "tg_tokens_per_s", "step_ms"),
        }
        assert row["threads"] == 2
        assert min(row["pp_tokens_per_s"], row["tg_tokens_per_s"]) > 0
        assert 0 < row["step_ms"]["p10"] <= row["step_ms"]["p50"] <= row["step_ms"]["p90"]


def test_calibrate_writes_a_profile(kvant: Callable, model: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.safetensors"
    result = kvant("calibrate", model, "--tokens", 128, "--out", profile, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["tokens"] == 128
    assert profile.stat().st_size > 30 * 3 * 64 * 3 * 4


def test_eval_kv(kvant: Callable, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The moon goes round the earth, and the earth goes round the sun. " * 20)
    plot = tmp_path / "plot.svg"
    result = kvant(
        *["eval", "kv", "--model", model, "--text", text, "--context", 80, "--chunks", 1, "--kv", "nvfp4"],
        *["--kv", "nvfp4-plain", "--weights", "auto", "--svg", plot, "--json"],
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {"model", "text_tokens", "context", "rows"} <= set(report)
    assert report["context"] == 80
    assert [row["kv"] for row in report["rows"]] == ["nvfp4", "nvfp4-plain"]
    for row in report["rows"]:
        assert {
            *("kv", "policy", "conditioning", "edges", "ppl", "kld_mean", "kld_p99", "top1_agreement"),
            *("base_bits", "effective_bits", "bytes_per_token"),
        } <= set(row)
    default, plain = (row["kld_mean"] for row in report["rows"])
    assert 0 <= default < plain
    assert plot.read_text().startswith("<svg")


def test_bench_attention(kvant: Callable) -> None:
    result = kvant(
        *["bench", "attention", "--format", "bf16", "nvfp4", "--context", 256, "--requests", 2],
        *["--repetitions", 3, "--json"],
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [row["format"] for row in report["rows"]] == ["bf16", "nvfp4"]
    assert report["rows"][0]["kv_bytes"] == 2 * 256 * 8 * 2 * 128 * 2
    for row in report["rows"]:
        assert row["route"].startswith("cpu/")
        assert min(row["percent_of_read"], row["page_read_gb_s"]) > 0


def test_too_little_text_is_refused(fails: Callable, model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("too short")
    fails(2, "eval", "kv", "--model", model, "--text", text, "--kv", "nvfp4")
