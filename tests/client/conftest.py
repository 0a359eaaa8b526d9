"""One service for the tests that only read, and one index a test for those that write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service import Running, make_index, make_model, running

READ, WRITE = "token-for-reading", "token-for-writing"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("client") / "model")


@pytest.fixture(scope="session")
def shared(model: Path) -> Iterator[tuple[Path, Running]]:
    """An index of numbers as ids behind a service with tokens."""
    path = make_index(model.parent / "shared.rbe", model)
    tokens = {"RBEGIR_READ_TOKEN": READ, "RBEGIR_WRITE_TOKEN": WRITE}
    with running(path, environment=tokens) as service:
        yield path, service
