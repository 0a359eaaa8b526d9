"""Writes requirements.lock: the tested environment with the sha256 of every file that pip may install.

    PIP_INDEX_URL=… python tools/lock.py     asks that package index; run it after constraints.txt has changed
    pip install --require-hashes -r requirements.lock

The versions are those of constraints.txt; the hashes are those that the package index publishes for the
wheels that fit the tested platform (CPython 3.11, Linux x86-64), or for the source where there is no such
wheel. Wheels named on the command line are allowed as well: the package index has torch for CUDA
only, and a machine without a GPU takes the build for CPUs from a file.

    PIP_INDEX_URL=… python tools/lock.py torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "constraints.txt"
LOCK = ROOT / "requirements.lock"
LINK = re.compile(r'href="([^"#]+)#sha256=([0-9a-f]{64})"')
HEAD = """# The tested environment (CPython 3.11, Linux x86-64) with hashes, written by tools/lock.py.
#   pip install --require-hashes -r requirements.lock
# torch: the build of the package index (for CUDA) and PyTorch's own for CPUs.
"""


def pins() -> dict[str, str]:
    """Name → version, from constraints.txt."""
    lines = (line.split("#")[0].strip() for line in PINS.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def links(index: str, name: str) -> list[tuple[str, str]]:
    """(file name, sha256) of every file of a package in an index."""
    with urllib.request.urlopen(f"{index}/{canonicalize_name(name)}/", timeout=60) as response:
        page = response.read().decode()
    return [(unquote(url.rsplit("/", 1)[1]), digest) for url, digest in LINK.findall(page)]


def hashes(name: str, version: str, index: str, at_hand: list[Path]) -> list[str]:
    """The digests of the files of a version that fit this platform."""
    tags = set(sys_tags())
    files = links(index, name)
    mine = [path for path in at_hand if path.name.split("-")[0].lower() == name.lower()]
    files += [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in mine]
    wheels, sources = [], []
    for file, digest in files:
        if file.endswith(".whl"):
            try:
                package, found, _, fits = parse_wheel_filename(file)
            except ValueError:
                continue  # a name from before wheels had rules
            if package == canonicalize_name(name) and found.public == version and fits & tags:
                wheels.append(digest)
        elif re.fullmatch(rf"{re.escape(name)}-{re.escape(version)}\.(tar\.gz|zip)", file, re.IGNORECASE):
            sources.append(digest)
    return sorted(set(wheels)) or sorted(set(sources))


def main() -> int:
    index = os.environ.get("PIP_INDEX_URL")
    if not index:
        print("error: PIP_INDEX_URL is not set\nhint: set it to the package index to ask", file=sys.stderr)
        return 1
    wanted = pins()
    at_hand = [Path(argument) for argument in sys.argv[1:]]
    with ThreadPoolExecutor(8) as pool:
        found = dict(
            zip(
                wanted,
                pool.map(partial(hashes, index=index.rstrip("/"), at_hand=at_hand), wanted, wanted.values()),
                strict=True,
            )
        )
    missing = [name for name, digests in found.items() if not digests]
    lines = [
        f"{name}=={wanted[name]}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
        for name, digests in found.items()
        if digests
    ]
    LOCK.write_text(HEAD + "\n".join(lines) + "\n")
    print(
        f"{len(lines)} packages, {sum(map(len, found.values()))} hashes; without any: {missing}",
        file=sys.stderr,
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
