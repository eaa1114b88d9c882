"""Model files that are missing, damaged or foreign: one error line that names the file or the fault, never a crash."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

VERSION = 3
TYPE_UINT32, TYPE_STRING, TYPE_ARRAY = 4, 8, 9


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def header(version: int = VERSION, num_tensors: int = 0, num_entries: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries)


def architecture(name: str) -> bytes:
    return string("general.architecture") + struct.pack("<I", TYPE_STRING) + string(name)


HUGE = 2**63
BAD_FILES = {
    "empty": b"",
    "text": b"this is not a model\n" * 100,
    "magic-only": b"GGUF",
    "old-version": header(version=1),
    "future-version": header(version=99),
    "huge-tensor-count": header(num_tensors=HUGE),
    "huge-entry-count": header(num_entries=HUGE),
    "huge-key": header(num_entries=1) + struct.pack("<Q", HUGE),
    "huge-array": header(num_entries=1) + string("a") + struct.pack("<IIQ", TYPE_ARRAY, TYPE_UINT32, 2**62),
    "nested-array": header(num_entries=1) + string("a") + struct.pack("<IIQ", TYPE_ARRAY, TYPE_ARRAY, 1) * 3,
    "unknown-type": header(num_entries=1) + string("a") + struct.pack("<I", 77),
    "no-architecture": header() + bytes(64),
    "tensor-outside": header(num_tensors=1, num_entries=1)
    + architecture("llama")
    + string("t")
    + struct.pack("<IQIQ", 1, 32, 0, 2**40),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("command", ["inspect", "run"])
def test_damaged_file(fails: Callable, tmp_path: Path, name: str, command: str) -> None:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(BAD_FILES[name])
    args = ["inspect", "model", path] if command == "inspect" else ["run", path, "--prompt", "hello"]
    fails_with_any_code(fails, args)


def fails_with_any_code(fails: Callable, args: list[object]) -> str:
    """Damage may be corrupt data (1) or something that this build does not read (3)."""
    try:
        return fails(1, *args)
    except AssertionError:
        return fails(3, *args)


def test_unsupported_architecture_is_named(fails: Callable, tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(header(num_entries=1) + architecture("mamba9"))
    assert "mamba9" in fails(3, "inspect", "model", path)
    assert "mamba9" in fails(3, "run", path, "--prompt", "hello")


def test_missing_file_and_directory_are_named(fails: Callable, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    for args in (["run", missing, "--prompt", "x"], ["inspect", "model", missing], ["chat", missing]):
        assert str(missing) in fails(1, *args)
    assert str(tmp_path) in fails(1, "run", tmp_path, "--prompt", "x")


def test_wrong_options_are_refused_before_the_model_is_read(fails: Callable, tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert "nvfp5" in fails(2, "run", missing, "--prompt", "x", "--kv", "nvfp5")
    assert "'f64'" in fails(2, "run", missing, "--prompt", "x", "--weights", "f64")
    fails(2, "run", missing)
    assert "no-prompt" in fails(1, "run", missing, "--prompt-file", tmp_path / "no-prompt")
