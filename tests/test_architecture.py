"""What keeps the house in order: arrows between folders, sizes, and what is imported when."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
ANALYZER = REPO / "analyzer" / "tokenlag"
MODULES = sorted(ANALYZER.rglob("*.py"))
TRACER_MODULES = sorted((REPO / "tracer" / "tokenlag_tracer").rglob("*.py"))

# each imports only from those before it (and from its own)
LAYERS = (
    "errors", "times", "window", "store", "simulate", "read", "collect", "explain", "judge",
    "overhead", "report",
    "pipeline", "comparing", "watching", "ask", "options", "commands", "live", "cli", "__main__",
)  # fmt: skip
MAX_LINES = 450


def layer_of(module: str) -> str:
    """`tokenlag.store.box` → `store`; the package itself is below everything."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_name(path: Path) -> str:
    parts = path.relative_to(ANALYZER.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Full names of what a module imports, wherever in it, with the line."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def relative(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_arrows_do_not_run_back(path: Path) -> None:
    own = layer_of(module_name(path))
    if own == "":
        return
    assert own in LAYERS, f"{relative(path)} is in no layer"
    back = [
        f"line {line}: {name}"
        for name, line in imports_of(path)
        if name.startswith("tokenlag.")
        and layer_of(name) in LAYERS
        and LAYERS.index(layer_of(name)) > LAYERS.index(own)
    ]
    assert not back


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_the_store_opens_duckdb(path: Path) -> None:
    users = [name for name, _ in imports_of(path) if name.split(".")[0] == "duckdb"]
    assert not users or layer_of(module_name(path)) == "store"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_of_the_tracer_only_the_names_are_imported(path: Path) -> None:
    used = {name for name, _ in imports_of(path) if name.split(".")[0] == "tokenlag_tracer"}
    wrong = {
        name
        for name in used
        if name != "tokenlag_tracer.conventions"
        and not name.startswith("tokenlag_tracer.conventions.")
    }
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_reports_and_the_command_line_print(path: Path) -> None:
    if layer_of(module_name(path)) in ("report", "cli", "__main__"):
        return
    if path.stem.endswith("worker"):
        return  # a child process: its standard output is its answer to the parent
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "print")
        or (
            isinstance(node, ast.Attribute)
            and node.attr in ("stdout", "stderr")
            and isinstance(node.value, ast.Name)
            and node.value.id == "sys"
        )
    ]
    assert not calls


@pytest.mark.parametrize("path", TRACER_MODULES, ids=relative)
def test_the_tracer_needs_nothing_of_the_analyzer(path: Path) -> None:
    allowed = {"tokenlag_tracer", "opentelemetry", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name, _ in imports_of(path)} <= allowed


@pytest.mark.parametrize("path", [*MODULES, *TRACER_MODULES], ids=relative)
def test_modules_do_one_thing(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [REPO / name for name in listed.stdout.decode().split("\0") if name]


def test_no_path_of_a_machine_is_written_down() -> None:
    pattern = re.compile(r"(?<![\w.])/(?:work|home|root|Users|workspace)/[a-z]")
    wrong = []
    for path in tracked_files():
        if not path.is_file() or path.suffix in (".gz", ".zst", ".parquet"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if pattern.search(line) and path != Path(__file__).resolve():
                wrong.append(f"{relative(path)}:{number}: {line.strip()[:80]}")
    assert not wrong


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import json, sys; from tokenlag.cli import main; main(['--help']); "
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(ran.stdout.splitlines()[-1]))
    assert "tokenlag" in loaded
    assert not loaded & {"duckdb", "polars", "numpy", "zstandard", "opentelemetry"}
