"""Black-box tests of the kvant program: they see arguments, files, output and exit codes."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Kvant = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kvant(tmp_path: Path) -> Kvant:
    """Runs the program with a cache directory of its own."""
    program = os.environ["KVANT_BINARY"]

    def run(*args: object, stdin: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KVANT_CACHE_DIR": str(tmp_path / "kvant-cache")}
        return subprocess.run(
            [program, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, env=environment
        )

    return run


@pytest.fixture
def fails(kvant: Kvant) -> Callable[..., str]:
    """Runs the program, which must fail with `code`, print nothing on stdout and one error line, which is returned."""

    def run(code: int, *args: object, **options: object) -> str:
        result = kvant(*args, **options)
        assert result.returncode == code, (args, result)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        assert line.startswith("kvant: error: ")
        return line

    return run
