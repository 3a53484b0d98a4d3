"""Who imports whom: no module takes part in a circle, and every room imports what lies below it alone.

Imports inside functions count, and so do those for type checkers alone: who reads a module needs what its types are. A
module's own packages, which Python imports with it, are not counted.
"""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import fastagg

PACKAGE = Path(fastagg.__file__).parent
Graph = dict[str, set[str]]

# From the bottom up. What a line names may import what stands on lines before it and on its own; the longest name that
# fits a module is its place.
ORDER = (
    ("errors", "_native", "_checkout", "_types", "timing", "removed"),
    ("sheet",),
    ("page",),
    ("_build", "_checks", "_extras", "_keywords", "tuning", "rules.names"),
    ("registry",),
    # What numbers lie in.
    ("storage", "lora"),
    ("ops",),
    ("model",),
    ("encoding",),
    ("clients",),
    ("distill",),
    ("rules",),
    ("server",),
    ("leaves", "durable"),
    ("presets",),
    ("public",),
    ("fastagg",),  # all public names, when the first is asked for
    # Frameworks and the command line know the package as its users do. Nothing below imports them.
    ("sim.seeds", "sim.functions", "trackers", "drawing"),
    ("sim", "integrations", "serve", "bars"),
    ("cli",),
    ("__main__",),
)


def modules(package: Path) -> dict[str, Path]:
    """The package's modules by their names, that of the package itself being its folder's. A wheel's benchmarks are
    programs of bench/ that use it."""
    found = {}
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        parts = path.relative_to(package.parent).with_suffix("").parts
        if parts[1] == "_bench":
            continue
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(source: str, known: set[str]) -> set[str]:
    """Which of the ``known`` modules a source imports; ``from package import module`` means the module."""
    found = set()
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, "relative imports are not understood here"
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                found.add(inner if inner in known else str(statement.module))
    return found & known


def graph_of(package: Path) -> Graph:
    paths = modules(package)
    return {name: imported(path.read_text(), set(paths)) - {name} for name, path in paths.items()}


def circle(graph: Graph) -> list[str]:
    """Return a cycle of modules, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def height(module: str) -> int:
    """The line of the table that a module stands on."""
    heights = {name: line for line, names in enumerate(ORDER) for name in names}
    place = module.removeprefix("fastagg.")
    while place not in heights:
        assert place, f"{module}: no line of the table names its room"
        place = place.rpartition(".")[0]
    return heights[place]


def upward(graph: Graph) -> list[str]:
    """Return the modules that import something above them."""
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in sorted(others)
        if height(other) > height(name)
    ]


@pytest.fixture(scope="module")
def graph() -> Graph:
    found = graph_of(PACKAGE)
    # Edges of each kind that is to be seen: plain, of a module by its package, inside a function, of the extension.
    for module, other in (
        ("ops.cached", "storage.cache"),
        ("_build", "tuning"),
        ("cli.runs", "sim.recipes.tables"),
        ("tuning", "_native"),
    ):
        assert f"fastagg.{other}" in found[f"fastagg.{module}"]
    return found


def test_no_circle(graph: Graph) -> None:
    assert not circle(graph)


def test_every_module_stands_in_a_room_and_imports_nothing_above_it(graph: Graph) -> None:
    assert not upward(graph)


def test_the_reference_knows_nothing_of_the_kernels() -> None:
    """Kernels are tested against it, so it may use only the formats' numbers."""
    known = set(modules(PACKAGE))
    files = (Path(__file__).parent / "support/reference").glob("*.py")
    outside = set().union(*(imported(path.read_text(), known) for path in files))
    assert outside == {"fastagg._build"}


def foreign_privates(source: str) -> list[str]:
    """Return the private members that a source uses of objects that are not its own."""
    own = ("self", "cls", "super()", "sys")
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr != "_replace"
        if ast.unparse(node.value) not in own
    ]


def test_adapters_use_no_private_member_of_the_server() -> None:
    assert {*foreign_privates("server._engine.x; self._a; task._views; self.server._b()")} == {
        "server._engine", "task._views", "self.server._b",
    }  # fmt: skip
    used = {}
    for path in sorted((PACKAGE / "integrations").rglob("*.py")):
        # Flower's own strategies, and an adapter's own settings, may be looked into.
        used[path.name] = [text for text in foreign_privates(path.read_text()) if not re.match(
            r"strategy\._make|(type\(self\)|FedAvg)\._check_and_log_replies", text)]  # fmt: skip
    assert not any(used.values()), used
