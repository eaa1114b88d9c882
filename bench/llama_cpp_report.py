#!/usr/bin/env python3
"""Joins what bench/llama_cpp.sh measured into one table and, on request, one JSON file."""

import argparse
import json
import statistics
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

PROMPT = 512
# What is compared: (work, depth).
POINTS = [("prompt", 0), ("prompt", 2048), ("generation", 2048), ("generation", 8064)]
BASELINE = "llama.cpp f16"


Samples = dict[str, dict[tuple[str, int], list[float]]]


def add(samples: Samples, name: str, point: tuple[str, int], rate: float) -> None:
    samples.setdefault(name, {}).setdefault(point, []).append(rate)


def read_llama(folder: Path, samples: Samples) -> None:
    for path in sorted(folder.glob("llama_*.json")):
        work = "prompt" if path.name.endswith(".prompt.json") else "generation"
        for test in json.loads(path.read_text()):
            add(samples, f"llama.cpp {test['type_k']}", (work, test["n_depth"]), statistics.median(test["samples_ts"]))


def read_kvant(folder: Path, samples: Samples) -> float | None:
    """Returns the best read rate that a run measured."""
    read_gb_s = None
    for path in sorted(folder.glob("kvant_*.json")):
        report: dict[str, Any] = json.loads(path.read_text())
        read_gb_s = max(read_gb_s or 0.0, report["read_gb_s"])
        for row in report["rows"]:
            name = f"kvant {row['kv']} ({row['weights']} weights)"
            if row["prompt"] == PROMPT:
                add(samples, name, ("prompt", row["depth"]), row["pp_tokens_per_s"])
            add(samples, name, ("generation", row["depth"]), row["tg_tokens_per_s"])
    return read_gb_s


def commit() -> str:
    repository = Path(__file__).parent
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=repository, capture_output=True, text=True, check=False
    ).stdout.strip()


def cpu_name() -> str:
    fields = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    names = {name.strip(): value.strip() for name, value in fields.items()}
    return f"{names.get('model name', 'unknown')}, family {names.get('cpu family')}, model {names.get('model')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    samples: Samples = {}
    read_gb_s = read_kvant(arguments.folder, samples)
    read_llama(arguments.folder, samples)
    rates = {name: {point: statistics.median(rate) for point, rate in row.items()} for name, row in samples.items()}
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
            {"engine": name, "work": work, "depth": depth, "tokens_per_s": rate, "rounds": samples[name][work, depth]}
            for name, row in rates.items()
            for (work, depth), rate in row.items()
        ]
        facts = {"date": date.today().isoformat(), "commit": commit(), "cpu": cpu_name(), "read_gb_s": read_gb_s}
        arguments.json.write_text(json.dumps(facts | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
