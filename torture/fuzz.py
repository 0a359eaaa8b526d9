"""Hostile bytes at every door (`doors.py`), guided by coverage where atheris is installed.

Each door is fuzzed in a process of its own with an address-space limit, a time limit per input, and an audit
hook that refuses to start processes, to unpickle, to connect anywhere and to write or look outside the
scratch directory. A finding is anything but acceptance or an RbegirError; its input is kept and goes to
tests/torture/corpus once the fault is fixed, where a test replays all of them.

    python -m torture fuzz --seconds 1800             all doors, an equal share of the time each
    python -m torture.fuzz csv --seconds 60 --out X   one door, in this process
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torture.limits import Limits

MEMORY = 3 << 30  # address space that a door may take besides what Python and Arrow reserve
INPUT_SECONDS = 20
FORBIDDEN = (
    "os.system",
    "subprocess.Popen",
    "os.exec",
    "os.posix_spawn",
    "pickle.find_class",
    "socket.connect",
)
CORPUS = Path(__file__).resolve().parents[1] / "tests" / "torture" / "corpus"
NAMES = (
    "raw", "segment", "manifest", "deletes", "salvage", "tensors", "config", "csv", "tsv", "jsonl", "txt",
    "gz", "parquet", "where", "codes", "http",
)  # fmt: skip


class ForbiddenError(BaseException):
    """A door did what no loader may do."""


class SlowError(BaseException):
    """An input took too long."""


def watch(*folders: Path) -> None:
    """From now on nothing is started, unpickled, reached or written outside these folders."""
    allowed = (*(str(folder.resolve()) for folder in folders), "/dev/null")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in FORBIDDEN:
            raise ForbiddenError(f"{event} {arguments!r}"[:300])
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not path.startswith(allowed):
                raise ForbiddenError(f"open {path} for writing")

    sys.addaudithook(hook)


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def guarded(door: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """The door with a time limit per input; raises findings only."""
    from rbegir.errors import RbegirError

    def too_slow(number: int, frame: Any) -> None:
        raise SlowError(f"an input took more than {INPUT_SECONDS} s")

    signal.signal(signal.SIGALRM, too_slow)

    def check(data: bytes) -> None:
        signal.alarm(INPUT_SECONDS)
        try:
            door(data)
        except RbegirError:
            pass  # refused with a message, as it should be
        finally:
            signal.alarm(0)

    return check


@contextlib.contextmanager
def open_door(name: str, folder: Path) -> Iterator[tuple[Callable[[bytes], None], list[bytes]]]:
    """A door and its seeds; the service has a module of its own, because it needs more packages."""
    if name == "http":
        from torture.http_door import HttpDoor

        http = HttpDoor(folder)
        with http.client:
            yield http, http.seeds
    else:
        from torture.doors import Doors

        doors = Doors(folder)
        yield doors.doors[name], doors.seeds[name]


def mutate(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    """A plain mutation, for where there is no coverage to be guided by."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at:at] = chance.choice(
                    (b"\0", b'"', b"\xff", b"\n", b"-1", b"99999999999", b"[[", b"{}")
                )
            case 2:
                del changed[at : at + chance.choice((1, 4, 100))]
            case 3:
                other = chance.choice(seeds)
                start = chance.randrange(len(other) + 1)
                changed[at:at] = other[start : start + chance.choice((1, 8, 64))]
            case 4 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 5:
                digits = [i for i, byte in enumerate(changed) if 48 <= byte < 58]
                if digits:
                    changed[chance.choice(digits)] = chance.choice(b"0123456789-.e")
            case _:
                changed[at : at + 8] = chance.choice((bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7))
    return bytes(changed)


def fuzz_plainly(name: str, folder: Path, seed: int, count: int) -> int:
    """Try mutations of the seeds without guidance; returns how many were tried, and raises on a finding."""
    chance = random.Random(f"{seed}/{name}")
    with open_door(name, folder) as (door, seeds):
        check, pool = guarded(door), list(seeds)
        for number in range(count):
            data = seeds[number] if number < len(seeds) else mutate(chance.choice(pool), seeds, chance)
            if number % 50 == 0:
                pool = [*seeds, *pool[-20:], data]  # walk away from the seeds, slowly
            try:
                check(data)
            except BaseException as error:
                raise AssertionError(f"{name}: {type(error).__name__}: {error} for {data[:400]!r}") from error
    return count


def fuzz_one(name: str, seed: int, seconds: float, out: Path) -> None:
    """One door in this process, guided by the coverage of rbegir; does not return."""
    import atheris

    with (
        tempfile.TemporaryDirectory() as scratch,
        atheris.instrument_imports(include=["rbegir"]),
        open_door(name, Path(scratch)) as (door, seeds),
    ):
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        for number, data in enumerate([*seeds, *(p.read_bytes() for p in sorted((CORPUS / name).glob("*")))]):
            (corpus / f"seed-{number}").write_bytes(data)
        watch(Path(scratch), out)
        limit_memory()
        check = guarded(door)
        tried = 0

        def test(data: bytes) -> None:
            nonlocal tried
            tried += 1
            if tried % 100 == 0:
                (out / f"{name}.count").write_text(str(tried))
            try:
                check(data)
            except BaseException as error:
                digest = hashlib.sha256(data).hexdigest()[:12]
                (out / f"{name}-{digest}").write_bytes(data)
                said = "".join(traceback.format_exception(error))[-3000:]
                (out / f"{name}-{digest}.txt").write_text(said)
                raise

        arguments = [sys.argv[0], str(corpus), f"-max_total_time={int(seconds)}", f"-seed={seed}"]
        arguments += [
            "-max_len=20000",
            "-rss_limit_mb=0",
            "-timeout=60",
            f"-artifact_prefix={out}/crash-{name}-",
        ]
        atheris.Setup(arguments, test)
        atheris.Fuzz()


def run(limits: Limits) -> dict[str, Any]:
    share = max(limits.seconds / len(NAMES) * limits.processes, 5.0)
    tried: dict[str, int] = {}
    findings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        waiting = list(NAMES)
        running: dict[str, subprocess.Popen[bytes]] = {}
        while waiting or running:
            while waiting and len(running) < limits.processes:
                name = waiting.pop(0)
                command = [sys.executable, "-m", "torture.fuzz", name, "--seconds", str(share)]
                command += ["--seed", str(limits.seed), "--out", folder]
                with (out / f"{name}.log").open("wb") as log:
                    running[name] = subprocess.Popen(command, stdout=log, stderr=log)
            time.sleep(0.5)
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                count = out / f"{name}.count"
                tried[name] = int(count.read_text()) if count.exists() else 0
                found = sorted(out.glob(f"{name}-*.txt"))
                findings += [f"{name}: {file.read_text().splitlines()[-1]}" for file in found]
                if process.returncode != 0 and not found:
                    findings.append(
                        f"{name}: ended with {process.returncode}: {(out / f'{name}.log').read_text()[-500:]}"
                    )
        kept = os.environ.get("TORTURE_FINDINGS")
        if kept:
            for file in out.iterdir():
                (Path(kept) / file.name).write_bytes(file.read_bytes())
    return {
        "inputs": sum(tried.values()),
        "by_door": tried,
        "losses": len(findings),
        "first_losses": findings[:20],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("door", choices=NAMES)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(json.dumps({"door": options.door}), flush=True)
    fuzz_one(options.door, options.seed, options.seconds, options.out)


if __name__ == "__main__":
    main()
