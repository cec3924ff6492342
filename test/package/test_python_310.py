"""Guards against: syntax and standard library of a newer Python than 3.10, which ROS 2 Humble has."""

from __future__ import annotations

import ast

from package.source_tree import ROOT, list_files, list_imports

NEWER_THAN_310 = {
    "tomllib",
    "asyncio.TaskGroup",
    "asyncio.timeout",
    "contextlib.chdir",
    "datetime.UTC",
    "enum.StrEnum",
    "enum.verify",
    "itertools.batched",
    "typing.LiteralString",
    "typing.Never",
    "typing.NotRequired",
    "typing.Required",
    "typing.Self",
    "typing.Unpack",
    "typing.assert_never",
    "typing.assert_type",
    "typing.override",
    "typing.reveal_type",
}
FILES = {str(path.relative_to(ROOT)): path for path in list_files((".py",))}


def test_syntax():
    for name, path in FILES.items():
        ast.parse(path.read_text(), name, feature_version=(3, 10))


def test_standard_library():
    for name, path in FILES.items():
        newer = [target for target in list_imports(path) if NEWER_THAN_310 & {target, target.split(".")[0]}]
        assert not newer, f"{name} imports {newer}"


def test_annotations_are_not_evaluated():
    with_functions = {name: path.read_text() for name, path in FILES.items() if "def " in path.read_text()}
    assert not [name for name, text in with_functions.items() if "\nfrom __future__ import annotations\n" not in text]
