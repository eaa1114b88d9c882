"""Tests on the model that `make model` fetches."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model() -> Path:
    path = Path(os.environ["KVANT_SOURCE_DIR"]) / "build/models/SmolLM2-135M-Instruct.gguf"
    if not path.is_file():
        pytest.skip("the model is not there; run make model")
    return path
