#!/usr/bin/env python3
"""Joins what bench/llama_cpp.sh measured into one table and, on request, one JSON file."""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

PROMPT = 512
# What is compared: (work, depth).
POINTS = [("prompt", 0), ("prompt", 2048), ("generation", 2048), ("generation", 8064)]
BASELINE = "llama.cpp f16"


def llama_rates(folder: Path) -> dict[str, dict[tuple[str, int], float]]:
    rates: dict[str, dict[tuple[str, int], float]] = {}
    for path in sorted(folder.glob("llama_*.json")):
        work = "prompt" if path.name.endswith(".prompt.json") else "generation"
        for test in json.loads(path.read_text()):
            row = rates.setdefault(f"llama.cpp {test['type_k']}", {})
            row[(work, test["n_depth"])] = statistics.median(test["samples_ts"])
    return rates


def kvant_rates(folder: Path) -> tuple[dict[str, dict[tuple[str, int], float]], float | None]:
    rates: dict[str, dict[tuple[str, int], float]] = {}
    read_gb_s = None
    for path in sorted(folder.glob("kvant_*.json")):
        report: dict[str, Any] = json.loads(path.read_text())
        read_gb_s = max(read_gb_s or 0.0, report["read_gb_s"])
        for row in report["rows"]:
            rate = rates.setdefault(f"kvant {row['kv']} ({row['weights']} weights)", {})
            if row["prompt"] == PROMPT:
                rate[("prompt", row["depth"])] = row["pp_tokens_per_s"]
            rate[("generation", row["depth"])] = row["tg_tokens_per_s"]
    return rates, read_gb_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    ours, read_gb_s = kvant_rates(arguments.folder)
    rates = llama_rates(arguments.folder) | ours
    baseline = rates[BASELINE]
    headings = [f"{work} at {depth}" for work, depth in POINTS]
    print(f"{'tokens/s (x llama.cpp f16)':32}" + "".join(f"{heading:>22}" for heading in headings))
    for name, row in rates.items():
        cells = [f"{row[p]:.1f} ({row[p] / baseline[p]:.2f}x)" if p in row else "-" for p in POINTS]
        print(f"{name:32}" + "".join(f"{cell:>22}" for cell in cells))
    if read_gb_s is not None:
        print(f"memory read {read_gb_s:.1f} GB/s")

    if arguments.json:
        rows = [
            {"engine": name, "work": work, "depth": depth, "tokens_per_s": rate}
            for name, row in rates.items()
            for (work, depth), rate in row.items()
        ]
        arguments.json.write_text(json.dumps({"rows": rows, "read_gb_s": read_gb_s}, indent=2) + "\n")


if __name__ == "__main__":
    main()
