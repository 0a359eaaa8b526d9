"""The OpenAPI document: the routes that FastAPI knows, with bodies, answers, limits and examples."""

from __future__ import annotations

from fastapi import FastAPI

from rbegir.serve.settings import Settings


def install(app: FastAPI, settings: Settings) -> None:
    """Complete the document of an application."""
