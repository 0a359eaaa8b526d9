"""Hooks of the documentation site (mkdocs.yml): pages from outside docs/, the HTTP reference, links, comments.

* SECURITY.md, CONTRIBUTING.md, CHANGELOG.md and dev/LOG.md become pages of the site.
* http.md is made at each build from the OpenAPI document of a running service.
* A link that leaves docs/ leads to such a page, or becomes plain text where the site has no such page.
* HTML comments are removed. They mark generated parts, and hold the lines of examples that only tests need.
"""

from __future__ import annotations

import json
import re
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import rbegir
from rbegir.lab.bench.serve import service

ROOT = Path(__file__).resolve().parents[1]
FROM_OUTSIDE = {
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "log.md": "dev/LOG.md",
}
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:]+?)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, source in FROM_OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "http.md", content=http_page(openapi())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = ROOT / FROM_OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def lead(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = (source.parent / target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return f"{image}[{text}]({path.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        inside = {ROOT / outside: name for name, outside in FROM_OUTSIDE.items()}.get(path)
        return f"[{text}]({inside}{anchor})" if inside else f"`{text.strip('`')}`"

    parts = re.split(r"(^```.*?^```$)", COMMENT.sub("", markdown), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def openapi() -> dict[str, Any]:
    """The OpenAPI document of a service over an empty index, as any client would fetch it."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "empty.rbe"
        rbegir.Index.create(index, n=64, keyword_planes=2, query_planes=3).close()
        with service(index) as (port, _):
            address = f"http://127.0.0.1:{port}/openapi.json"
            with urllib.request.urlopen(address, timeout=60) as response:
                document: dict[str, Any] = json.load(response)
                return document


def http_page(document: dict[str, Any]) -> str:
    """The reference of all routes and bodies, as Markdown."""
    lines = [
        "# HTTP reference",
        "",
        "This page is generated from the OpenAPI document that every service returns at `/openapi.json`. "
        "Limits are the defaults. [Serve an index](serve.md) shows how to use the routes.",
        "",
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [f"## `{method.upper()} {path}`", "", *_operation(operation)]
    lines += ["## Bodies", ""]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"### {name}", "", *_schema(schema)]
    return "\n".join(lines)


def _operation(operation: dict[str, Any]) -> list[str]:
    lines = [operation.get("description") or operation["summary"], ""]
    lines += [
        f"- `{parameter['name']}` ({parameter['in']}): {_cell(parameter.get('description', ''))}"
        for parameter in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {})
    lines += [f"- request: `{media}`, {_type(content['schema'])}" for media, content in body.items()]
    good = operation["responses"].get("200", {}).get("content", {})
    lines += [f"- response: `{media}`, {_type(content['schema'])}" for media, content in good.items()]
    lines += ["", "| status | meaning |", "|---|---|"]
    for status, response in sorted(operation["responses"].items()):
        lines.append(f"| {status} | {_cell(response['description'])} |")
    return [*lines, ""]


def _schema(schema: dict[str, Any]) -> list[str]:
    lines = [schema["description"], ""] if "description" in schema else []
    required = schema.get("required", ())
    lines += ["| field | type | required | meaning |", "|---|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        about = _cell(" ".join(filter(None, [field.get("description", ""), _limits(field)])))
        lines.append(f"| `{name}` | {_type(field)} | {'yes' if name in required else ''} | {about} |")
    return [*lines, ""]


def _type(schema: dict[str, Any]) -> str:
    """A type in words, with links to the bodies it names."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if choices:
        return " or ".join(dict.fromkeys(_type(choice) for choice in choices))
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    return str(schema.get("format") if schema.get("format") == "binary" else schema.get("type", "any"))


def _limits(schema: dict[str, Any]) -> str:
    words = {
        "minimum": "at least",
        "maximum": "at most",
        "maxItems": "at most this many:",
        "default": "default",
    }
    parts = [schema, *schema.get("anyOf", ())]
    said = [
        f"{word} {json.dumps(part[key])}"
        for part in parts
        for key, word in words.items()
        if part.get(key) is not None
    ]
    return f"({', '.join(said)})" if said else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
