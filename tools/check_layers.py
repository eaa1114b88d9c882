#!/usr/bin/env python3
"""Checks that every #include in the tree follows the layers of docs/design/architecture.md."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE_SUFFIXES = {".h", ".cc", ".cpp", ".cu", ".cuh"}
SCANNED = ("include", "src", "apps")

# Box -> boxes it may include besides itself. "attn" is the set of public headers in include/kvant/attn.
ALLOWED = {
    "core": set(),
    "attn": {"core"},
    "attn/kv": {"attn", "core"},
    "attn/common": {"attn", "attn/kv", "core"},
    "attn/cpu": {"attn", "attn/kv", "attn/common", "core"},
    "attn/cuda": {"attn", "attn/kv", "attn/common", "core"},
    "attn/reference": {"attn", "attn/kv", "attn/common", "core"},
    "attn/api": {"attn", "attn/kv", "attn/common", "attn/cpu", "attn/cuda", "core"},
    "ops": {"core"},
    "engine": {"attn", "ops", "core"},
    "server": {"engine", "core"},
    "apps": {"server", "engine", "attn", "core"},
}

# Third-party header prefix -> boxes that may include it.
THIRD_PARTY = {
    "CLI/": {"apps"},
    "httplib": {"server"},
    "nlohmann/": {"apps", "server", "engine"},
    "oneapi/": {"ops"},
    "dnnl": {"ops"},
    "torch/": set(),
    "cuda": {"attn/cuda", "attn/kv", "core", "ops"},
    "cublas": {"ops"},
}

# The one macro that tells builds apart may be tested here only; elsewhere a missing backend is a stub source.
CUDA_MACRO = "KVANT_WITH_CUDA"
CUDA_MACRO_FILES = {"src/attn/api/select.cc", "src/core/device.cc"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def box_of_parts(parts: tuple[str, ...]) -> str | None:
    """Box of a path below include/kvant or src."""
    if not parts:
        return None
    if parts[0] == "attn" and len(parts) > 2 and f"attn/{parts[1]}" in ALLOWED:
        return f"attn/{parts[1]}"
    return parts[0] if parts[0] in ALLOWED else None


def box_of_file(path: Path) -> str | None:
    parts = path.parts
    if parts[:2] == ("include", "kvant"):
        return box_of_parts(parts[2:])
    if parts[0] == "src":
        return box_of_parts(parts[1:])
    return "apps" if parts[0] == "apps" else None


def box_of_include(name: str) -> str | None:
    """Box of a project header as it is written in an include line; None for anything else."""
    parts = tuple(name.split("/"))
    return box_of_parts(parts[1:] if parts[0] == "kvant" else parts)


def check_include(path: Path, quote: str, name: str) -> str | None:
    """What is wrong with one include line of `path`, or None."""
    box = box_of_file(path)
    public = path.parts[0] == "include"
    if box is None:
        return "the file is in no known box"
    if quote == "<":
        if public and "/" in name and name != "tl/expected.hpp":
            return f"a public header may include kvant/**, the standard library and <tl/expected.hpp>, not <{name}>"
        for prefix, boxes in THIRD_PARTY.items():
            if name.startswith(prefix) and box not in boxes:
                return f"<{name}> may be included by {', '.join(sorted(boxes)) or 'nobody'}, not by {box}"
        return None
    if public and not name.startswith("kvant/"):
        return f'a public header may include only public headers, not "{name}"'
    target = box_of_include(name)
    if target is None:
        # A header of the program itself lies beside it and is found by its file name.
        return None if box == "apps" else f'"{name}" names no box; write it from the root, such as "core/mmap_file.h"'
    if target != box and target not in ALLOWED[box]:
        return f'{box} may not include {target} ("{name}")'
    return None


def violations(root: Path) -> Iterator[str]:
    for top in SCANNED:
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in SOURCE_SUFFIXES:
                continue
            path = file.relative_to(root)
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                if match := INCLUDE.match(line):
                    problem = check_include(path, match[1], match[2])
                    if problem:
                        yield f"{path}:{number}: {problem}"
                if CUDA_MACRO in line and path.as_posix() not in CUDA_MACRO_FILES:
                    yield f"{path}:{number}: {CUDA_MACRO} may appear only in {', '.join(sorted(CUDA_MACRO_FILES))}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    args = parser.parse_args()
    found = list(violations(args.root))
    print("\n".join(found) if found else "layers: ok")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
