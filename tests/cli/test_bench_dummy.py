"""`kvant bench model --dummy`: decode steps of a model that has a shape and random weights."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

SHAPE = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 64,
    "num_q_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "ffn_size": 96,
    "vocabulary_size": 320,
    "context_limit": 1024,
    "qk_norm": True,
}


def test_every_cell_has_its_times(kvant: Callable, tmp_path: Path) -> None:
    shape = tmp_path / "tiny.json"
    shape.write_text(json.dumps(SHAPE))
    result = kvant(
        # The median of so many steps is not one that waited for a core.
        *("bench", "model", "--dummy", shape, "--dummy-on-cpu", "--json", "--steps", "25", "--query-len", "2"),
        *("--kv", "bf16", "nvfp4", "--batch", "1", "3", "--at-context", "40"),
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["model"] == "tiny"
    cells = [(row["kv"].split(":")[0], row["batch"], row["context"]) for row in report["rows"]]
    assert cells == [("bf16", 1, 40), ("bf16", 3, 40), ("nvfp4", 1, 40), ("nvfp4", 3, 40)]
    for row in report["rows"]:
        assert row["tpot_ms"] > 0
        assert row["products_ms"] > 0
        assert row["attention_ms"] > 0
        assert 0 < row["empty_ms"] < row["tpot_ms"]
        assert row["kv_bytes"] > 0


def test_a_plot_shows_every_cell(kvant: Callable, tmp_path: Path) -> None:
    shape, plot = tmp_path / "tiny.json", tmp_path / "plot.svg"
    shape.write_text(json.dumps(SHAPE | {"name": "a<b>&c"}))
    result = kvant(
        *("bench", "model", "--dummy", shape, "--dummy-on-cpu", "--steps", "2", "--svg", plot),
        *("--kv", "bf16", "nvfp4", "--batch", "1", "3", "--at-context", "40", "20"),
    )
    assert result.returncode == 0, result.stderr
    root = ElementTree.parse(plot).getroot()
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0].startswith("a<b>&c on ")
    for group in ("1 x 40 tokens", "1 x 20 tokens", "3 x 40 tokens", "3 x 20 tokens"):
        assert texts.count(group) == 1
    assert texts.count("bf16") == 4
    assert sum(text.endswith(" tokens/s") for text in texts) == 8
    widths = [float(rect.get("width", "0")) for rect in root.iter("{http://www.w3.org/2000/svg}rect") if rect.get("x")]
    assert all(width >= 0 for width in widths)


def test_experts_sinks_and_biases_run(kvant: Callable, tmp_path: Path) -> None:
    shape = tmp_path / "experts.json"
    gpt_oss = {"num_experts": 8, "num_experts_used": 2, "window": 16, "window_every": 2}
    flags = {"sinks": True, "qkv_bias": True, "output_bias": True, "qk_norm": False}
    shape.write_text(json.dumps(SHAPE | gpt_oss | flags))
    result = kvant(
        *("bench", "model", "--dummy", shape, "--dummy-on-cpu", "--json", "--steps", "2"),
        *("--kv", "bf16", "--batch", "2", "--at-context", "40"),
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["rows"][0]["tpot_ms"] > 0


def test_more_used_experts_than_there_are_is_refused(fails: Callable, tmp_path: Path) -> None:
    shape = tmp_path / "experts.json"
    shape.write_text(json.dumps(SHAPE | {"num_experts": 8, "num_experts_used": 9}))
    assert "9 of 8 experts" in fails(2, "bench", "model", "--dummy", shape)
