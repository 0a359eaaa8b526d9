"""Empty stores over an index and over a service, and coroutines as tests."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rbegir
from tests.service import make_index, make_model, running


def embed(text: str) -> list[float]:
    """A vector of 96 dimensions: a random one per word, added up, so texts with common words are near."""
    words = [np.random.default_rng(list(word.encode())).standard_normal(96) for word in text.split()]
    return list(np.sum(words, axis=0))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("adapters") / "model")


@pytest.fixture(scope="session")
def service(model: Path) -> Iterator[rbegir.Client]:
    path = make_index(model.parent / "served.rbe", model, count=0, id_type="string")
    with running(path) as server, rbegir.Client(server.url) as client:
        yield client


@pytest.fixture(params=["index", "service"])
def keywords(
    request: pytest.FixtureRequest, model: Path, tmp_path: Path
) -> Iterator[rbegir.Index | rbegir.Client]:
    """An empty index with texts as ids, or a service of one."""
    if request.param == "index":
        with rbegir.Index.create(tmp_path / "own.rbe", rbegir.Model.load(model), id_type="string") as index:
            yield index
        return
    client: rbegir.Client = request.getfixturevalue("service")
    yield client
    while ids := client.search("a", k=1000).ids[0].tolist():
        client.delete(ids)


def pytest_configure(config: pytest.Config) -> None:
    """Marks in modules of LangChain's tests that come along with the one that is used."""
    for name in ("benchmark", "vcr"):
        config.addinivalue_line("markers", f"{name}: a mark of langchain_tests, used by none of ours")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """LangChain's standard tests hold coroutines; each runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True
