"""The Containerfile does what its page says: no root, known options, a health check that is answered."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from rbegir import cli

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """(instruction, rest) of every stage; continued lines are joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def last_stage() -> dict[str, str]:
    found = instructions()
    start = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return dict(found[start:])


def test_the_process_is_not_root() -> None:
    user, group = last_stage()["USER"].split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_command_is_one_that_the_service_takes() -> None:
    program, *words = json.loads(last_stage()["ENTRYPOINT"])
    assert program == "rbegir"
    usage = CliRunner().invoke(cli.build(["serve"]), ["serve", "--help"]).output
    options = [word for word in words if word.startswith("--")]
    assert options
    assert all(option in usage for option in options)
    assert words[words.index("--port") + 1] == last_stage()["EXPOSE"]


def test_what_is_written_lies_in_volumes() -> None:
    stage = last_stage()
    volumes = json.loads(stage["VOLUME"])
    assert f"RBEGIR_CACHE={volumes[1]}" in stage["ENV"]
    assert json.loads(stage["CMD"]) == [volumes[0]]


def test_the_health_check_asks_a_route_of_the_service_on_its_port() -> None:
    stage = last_stage()
    command = json.loads(stage["HEALTHCHECK"].partition("CMD ")[2])
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", command[-1])[0]
    assert port == stage["EXPOSE"]
    assert f'@operation("all", "GET {path}",' in (ROOT / "src/rbegir/serve/app.py").read_text()
    compile(command[-1], "health check", "exec")


def test_the_build_sees_only_what_it_copies() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    assert copied
    assert all(
        any(source.startswith(start) for start in allowed) for [*sources] in copied for source in sources
    )


def test_the_page_builds_an_image_that_keeps_the_health_check() -> None:
    """Images of OCI, which Podman builds unless told otherwise, have none."""
    assert "HEALTHCHECK" in last_stage()
    assert "podman build --format docker " in (ROOT / "docs" / "serve.md").read_text()
