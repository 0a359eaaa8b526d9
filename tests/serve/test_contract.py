"""schemathesis against the OpenAPI document, over a socket, with every check that it has.

Whatever fits the document is accepted, whatever does not is refused, and every answer has a documented
status, media type, headers and body. The seed is fixed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rbegir
from rbegir.errors import InputError
from rbegir.search.hits import Cursor
from rbegir.search.request import OPTIONS
from rbegir.serve.openapi import document
from rbegir.serve.routes import Handlers
from rbegir.serve.settings import Settings
from rbegir.wire.schema import SearchBody
from rbegir.wire.search import NOT_SENT
from tests.serve.conftest import listening

HERE = Path(__file__).parent


def test_the_service_keeps_its_contract(index_path: Path, tmp_path: Path) -> None:
    for name in ("contract.toml", "contract_formats.py"):  # it leaves a cache where it runs
        shutil.copy(HERE / name, tmp_path)
    limits = {"max_k": 20, "max_queries": 8, "max_keywords": 100, "max_text_chars": 64, "max_where_chars": 64}
    with listening(rbegir.Index.open(index_path), **limits) as address:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", "contract.toml"),
                *("run", f"{address}/openapi.json", "--phases", "examples,coverage,fuzzing"),
                *("--checks", "all", "--max-examples", "15", "--seed", "1", "--continue-on-failure"),
                *("--suppress-health-check", "all", "--warnings", "off"),
            ],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


EXAMPLES: dict[str, list[Any]] = {  # of every option
    "k": [None, 3],
    "where": [None, "id > 3", ["id > 3"], [None]],
    "allow": [None, [3], [[3]], [None]],
    "deny": [None, [3], [[3]], [None]],
    "must": [None, "a", ["a"], [None]],
    "tenant": [None, "a"],
    "item": [None, "lang"],
    "min_score": [None, 0.5, 0],
    "after": [None, Cursor.start(1).text()],
    "mode": ["exact", "paper"],
    "per_thread": [7],
    "queue": [2],
    "planes": [None, 1],
    "rerank": [None, True, False],
    "candidates": [None, 9],
    "measure": [True, False],
    "why": [True, False],
    "texts": [True, False],
    "attributes": [True, False],
    "partial": [True, False],
}


@pytest.fixture(scope="module")
def checker() -> jsonschema.Draft202012Validator:
    """The schema of a search of an index with tenants, as the OpenAPI document has it."""
    operations = [found.operation for found in vars(Handlers).values() if hasattr(found, "operation")]
    columns = {"shop": "string", "lang": "string"}
    info = {"n": 64, "keyword_planes": 2, "id_type": "int64", "keywords": 9, "attributes": columns}
    found = document(operations, Settings(), info | {"tenant": "shop"}, "texts", [])
    return jsonschema.Draft202012Validator({"$ref": "#/components/schemas/SearchRequest", **found})


@pytest.mark.parametrize("first", EXAMPLES)
def test_the_document_refuses_the_options_that_a_search_refuses(
    checker: jsonschema.Draft202012Validator, first: str
) -> None:
    assert EXAMPLES.keys() == OPTIONS.keys() - NOT_SENT
    for second in EXAMPLES:
        for one, other in itertools.product(EXAMPLES[first], EXAMPLES[second]):
            body = {"queries": ["a"], first: one, second: other}
            try:
                SearchBody.model_validate_json(json.dumps(body)).request()
                accepted = True
            except InputError:
                accepted = False
            assert checker.is_valid(body) == accepted, body


def test_the_document_refuses_to_rerank_codes(checker: jsonschema.Draft202012Validator) -> None:
    body = {"codes": [["0" * 16, "f" * 16]], "k": 3}
    assert checker.is_valid(body | {"rerank": False})
    assert not checker.is_valid(body | {"rerank": True})
