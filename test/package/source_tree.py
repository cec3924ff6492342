"""The source tree as the tests of the package see it: its files and the imports in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "phyai_kernels": "kernels",
    "phyai_core": "phyai_core",
    "phyai_adapters": "adapters",
    "phyai_ros": "phyai_ros",
}
NOT_SOURCE = {"build", "install", "log", "dist", "out", "__pycache__"}


def list_files(suffixes: tuple[str, ...], below: Path = ROOT) -> list[Path]:
    """Source files, without hidden folders and what builds leave behind."""
    found: list[Path] = []
    for path in sorted(below.iterdir()):
        if path.name.startswith(".") or path.name in NOT_SOURCE or path.is_symlink():
            continue
        if path.is_dir():
            found += list_files(suffixes, path)
        elif path.suffix in suffixes:
            found.append(path)
    return found


def list_modules(package: str) -> dict[str, Path]:
    """Every module of a package: dotted name -> file."""
    folder = ROOT / PACKAGES[package]
    modules = {}
    for path in list_files((".py",), folder):
        parts = path.relative_to(folder).with_suffix("").parts
        modules[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return modules


def list_imports(path: Path, at_import_time: bool = False) -> list[str]:
    """Dotted names that a file imports (`from a import b` gives a.b); with `at_import_time` not those in functions."""
    tree = ast.parse(path.read_text(), str(path))
    nodes = _walk_module_level(tree) if at_import_time else ast.walk(tree)
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return names


def _walk_module_level(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        is_deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_deferred and not is_for_types:
            yield child
            yield from _walk_module_level(child)
