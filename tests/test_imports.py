"""The architecture, as a test of the imports: which package may import which.

Imports are read with `ast`: those inside functions and those for type checking too.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import rbegir

ROOT = Path(rbegir.__file__).parent
# from the bottom to the top; packages of one layer may import each other, but not in a cycle
LAYERS = (
    {"errors", "_native"}, {"base"}, {"codes"}, {"read"}, {"encode"}, {"search"}, {"index"}, {"wire"},
    {"evaluate"}, {"training"}, {"client"}, {"cluster", "serve", "adapters"}, {"lab"}, {"cli"},
)  # fmt: skip
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}
OUTSIDE = {"rbegir", "__main__", "moved"}  # the public names, `python -m rbegir` and old import paths
TWICE = {"RbegirVectorStore"}  # the public name in both adapters


def module_name(path: Path) -> str:
    parts = ("rbegir", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def package_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports(module: str, *, at_import: bool = False) -> Iterator[str]:
    """The names of the modules that a module imports; with `at_import` only what runs when it is imported."""
    found: list[ast.AST] = [ast.parse(MODULES[module].read_text(encoding="utf-8"))]
    while found:
        node = found.pop()
        if at_import and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif at_import and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            found += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{module} has a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES or node.module == "rbegir._native" else node.module
        else:
            found += ast.iter_child_nodes(node)


def crossings() -> set[tuple[str, str]]:
    """(module, imported module) wherever an import leaves a package."""
    return {
        (module, imported)
        for module in MODULES
        if package_of(module) not in OUTSIDE
        for imported in imports(module)
        if imported.startswith("rbegir.") and package_of(imported) != package_of(module)
    }


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in MODULES} - OUTSIDE == set(LEVEL)


def test_imports_point_downwards() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module, imported in sorted(crossings())
        if LEVEL[package_of(imported)] > LEVEL[package_of(module)]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_package_imports_itself_through_others() -> None:
    below: dict[str, set[str]] = defaultdict(set)
    for module, imported in crossings():
        below[package_of(module)].add(package_of(imported))
    while leaves := [package for package in below if not below[package] & below.keys()]:
        for package in leaves:
            del below[package]
    assert not below, f"in a cycle, or above one: {sorted(below)}"


def test_only_the_command_line_imports_lab() -> None:
    wrong = [f"{module} imports {name}" for module, name in crossings() if package_of(name) == "lab"]
    assert all(line.startswith("rbegir.cli") for line in wrong), "\n".join(sorted(wrong))


def test_the_client_needs_neither_the_native_module_nor_torch() -> None:
    """Whatever is imported when `rbegir.client` is, directly or through other modules."""
    reached = {module for module in MODULES if package_of(module) == "client"}
    waiting = sorted(reached)
    while waiting:
        module = waiting.pop()
        parents = {module.rsplit(".", up)[0] for up in range(1, module.count(".") + 1)}
        for name in {*imports(module, at_import=True), *parents}:
            first = name.split(".")[0]
            assert first not in ("torch", "triton"), f"{module} imports {name}"
            assert not name.startswith("rbegir._native"), f"{module} imports {name}"
            if name in MODULES and name not in reached:
                reached.add(name)
                waiting.append(name)


def test_public_classes_have_names_of_their_own() -> None:
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    twice = {name for name, count in names.items() if count > 1}
    assert twice == TWICE, sorted(twice - TWICE)
