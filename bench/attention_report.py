#!/usr/bin/env python3
"""Decode attention on CUDA beside other libraries: tables into docs/performance.md, plots into docs/images.

bench/attention_report.py   reads bench/results/h200/{attention_decode,peers_decode}.json
"""

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, IMAGES = ROOT / "bench/results/h200", ROOT / "docs/performance.md", ROOT / "docs/images"
Row = dict[str, Any]
Cell = tuple[int, int, int]  # batch, context, q_len
COLOURS = {"bf16": "#4477aa", "e4m3": "#cc6677", "nvfp4": "#228833"}
# Our format, the peers' format, what the comparison is called.
COMPARISONS = [
    ("bf16", "bf16", "bf16, bf16 peers"),
    ("e4m3", "e4m3", "e4m3, fp8 peers"),
    ("nvfp4", "e4m3", "nvfp4, fp8 peers"),
    ("nvfp4", "nvfp4", "nvfp4, nvfp4 peers"),
]


def load(name: str) -> list[Row]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))["rows"]  # type: ignore[no-any-return]


def cell(row: Row) -> Cell:
    return row["batch"], row["context"], row["q_len"]


def ours(rows: list[Row], kv_format: str) -> dict[Cell, Row]:
    plain = (r for r in rows if not r["mixed"] and not r["edges"] and r["q_heads"] == 32 and r["head_dim"] == 128)
    return {cell(r): r for r in plain if r["format"] == kv_format}


def fastest(rows: list[Row], kv_format: str) -> dict[Cell, Row]:
    best: dict[Cell, Row] = {}
    for row in rows:
        if row["format"] == kv_format and "us" in row:
            best[cell(row)] = min(best.get(cell(row), row), row, key=lambda r: r["us"])
    return best


def size(context: int) -> str:
    return f"{context // 1024}k"


def comparison_table(rows: list[Row], peers: list[Row]) -> list[str]:
    lines = [
        "| | query tokens | cells | geometric mean of our time / theirs | worst cell |",
        "| --- | --- | --- | --- | --- |",
    ]
    for mine, theirs, name in COMPARISONS:
        own, best = ours(rows, mine), fastest(peers, theirs)
        for q_len in (1, 4):
            ratios = {c: own[c]["us"] / best[c]["us"] for c in best if c in own and c[2] == q_len}
            mean = math.exp(sum(math.log(r) for r in ratios.values()) / len(ratios))
            worst = max(ratios, key=lambda c: ratios[c])
            text = f"{worst[0]} x {size(worst[1])}, {ratios[worst]:.2f} ({best[worst]['peer']})"
            lines.append(f"| {name} | {q_len} | {len(ratios)} | {mean:.3f} | {text} |")
    return lines


def grid_table(rows: list[Row], peers: list[Row], q_len: int) -> list[str]:
    lines = ["| requests x keys | bf16 | fastest | e4m3 | fastest | nvfp4 | fastest |", "| --- " * 7 + "|"]
    columns = [(ours(rows, f), fastest(peers, f)) for f in COLOURS]
    cells = sorted({c for own, _ in columns for c in own if c[2] == q_len}, key=lambda c: (c[1], c[0]))
    for c in cells:
        if not any(c in best for _, best in columns):
            continue
        texts = [f"{c[0]} x {size(c[1])}"]
        for own, best in columns:
            texts.append(f"{own[c]['us']:.1f}" if c in own else "-")
            texts.append(f"{best[c]['us']:.1f} {best[c]['peer']}" if c in best else "-")
        lines.append("| " + " | ".join(texts) + " |")
    return lines


def plot(rows: list[Row], peers: list[Row], q_len: int) -> str:
    left, top, width, height, step = 56, 52, 660, 300, 33
    cells = sorted(
        (c for c in ours(rows, "e4m3") if c[2] == q_len and c in fastest(peers, "e4m3")), key=lambda c: (c[1], c[0])
    )
    place = {c: left + step * (i + 0.5) for i, c in enumerate(cells)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 150}" height="{top + height + 60}" '
        'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="13" font-weight="bold">Decode attention on one H200, {q_len} query '
        f"token{'s' if q_len > 1 else ''} a request</text>",
        f'<text x="{left}" y="40" fill="#555555">fraction of a plain read of the same bytes; '
        "dashed: the fastest other library</text>",
    ]
    for tenth in range(0, 11, 2):
        y = top + height * (1 - tenth / 10)
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + width}" y2="{y}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
    for c, x in place.items():
        parts.append(f'<text x="{x}" y="{top + height + 16}" text-anchor="middle">{c[0]}</text>')
        parts.append(f'<text x="{x}" y="{top + height + 32}" text-anchor="middle" fill="#555555">{size(c[1])}</text>')
    parts.append(f'<text x="{left + width + 8}" y="{top + height + 16}">requests</text>')
    parts.append(f'<text x="{left + width + 8}" y="{top + height + 32}" fill="#555555">keys</text>')
    for i, (kv_format, colour) in enumerate(COLOURS.items()):
        best = {c: r for c, r in fastest(peers, kv_format).items() if "fraction_of_read" in r}
        for points, dash, label in ((ours(rows, kv_format), "", kv_format), (best, "5 4", f"{kv_format}, other")):
            for context in sorted({c[1] for c in cells}):
                row = [c for c in cells if c[1] == context and c in points]
                line = " ".join(f"{place[c]:.1f},{top + height * (1 - points[c]['fraction_of_read']):.1f}" for c in row)
                style = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"'
                parts.append(f'<polyline points="{line}" fill="none" {style}/>')
            y = top + 20 + 40 * i + (16 if dash else 0)
            x = left + width + 8
            parts.append(
                f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{colour}" stroke-width="2" '
                f'stroke-dasharray="{dash}"/>'
            )
            parts.append(f'<text x="{x + 30}" y="{y + 4}">{label}</text>')
    parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#333333"/>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    rows, peers = load("attention_decode.json"), load("peers_decode.json")
    for q_len in (1, 4):
        (IMAGES / f"attention_decode_q{q_len}.svg").write_text(plot(rows, peers, q_len), encoding="utf-8")
    begin, end = "<!-- bench/attention_report.py -->", "<!-- end -->"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    tables = [*comparison_table(rows, peers), "", "Microseconds, one query token:", "", *grid_table(rows, peers, 1)]
    tables += ["", "Four query tokens:", "", *grid_table(rows, peers, 4)]
    PAGE.write_text("\n".join([before + begin, *tables, end]) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
