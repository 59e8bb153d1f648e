"""The rules of the house, read from the source: who may import whom, what runs before torch, sizes, names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
PYTHON_FILES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]

STAGES = {"data", "model", "training", "inference", "evaluation"}
# What each folder may import of ours besides itself; a module stands for itself, a folder for all its modules.
MAY_IMPORT = {
    "data": {"progress", "files"},
    "model": set(),
    "evaluation": {"progress"},  # of TER
    "inference": {"model", "data.tokenizer", "progress", "files", "identity", "stored_config"},
    "training": {"model", "data", "inference", "evaluation", "files"},
    "report": {"evaluation", "schema", "files", "identity", "stored_config", "terminal"},
    "callbacks": {*STAGES, "progress", "run_folder"},  # which files of a folder are the run's
    "hydra_plugins": {"report", "schema", "errors", "files", "identity"},
    "tasks": {
        *STAGES,
        "report",
        "callbacks",
        "progress",
        "files",
        "identity",
        "run_folder",
        "schema",
        "errors",
        "terminal",
        "arguments",
    },
    "analysis": {"model", "data.tokenizer", "inference", "evaluation", "progress", "files"},
    "serving": {"model", "data.tokenizer", "inference", "analysis"},
    "applications": {
        *(*STAGES, "analysis", "serving", "report", "tasks"),
        *("progress", "files", "identity", "run_folder", "schema", "stored_config", "terminal", "arguments"),
    },
    "progress": {"terminal"},
    "terminal": set(),
    "files": set(),
    "identity": {"files"},
    "run_folder": {"files", "identity", "schema"},
    "schema": {"files"},
    "resolvers": {"files", "identity", "schema"},
    "arguments": {"schema"},
    "stored_config": {"schema"},
    "aiayn": {"inference", "files"},
    "errors": {"schema"},
    "run": {"schema", "resolvers", "errors"},  # and the task that the config names
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


SLOW_TO_IMPORT = {"torch", "lightning", "torchmetrics"}
# Needed before a task has started, or in processes that only handle text.
WITHOUT_TORCH = [
    *(
        "run",
        "aiayn.errors",
        "aiayn.identity",
        "aiayn.resolvers",
        "aiayn.run_folder",
        "aiayn.schema",
        "aiayn.tasks.plan",
        "aiayn.tasks.report",
        "aiayn.tasks.status",
        "aiayn.tasks.dashboard",
        "aiayn.tasks.diff",
    ),
    "aiayn.applications.score",
    *(module_name(path) for path in MODULES if path.parent.name == "evaluation"),
    *(module_name(path) for path in MODULES if path.parent.name in ("report", "aiayn_launcher")),
    "aiayn.analysis.figures",
    *(f"aiayn.data.{name}" for name in ("parallel_text", "numbers", "cleaning", "tokenizer", "corpus")),
]


# May write without `aiayn.files`: what is in a folder that has no name yet, of a corpus or an export; and locks.
WRITERS = {"aiayn.files", "aiayn.inference.export", *(f"aiayn.data.{name}" for name in ("builder", "ragged", "corpus"))}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(code: str) -> set[str]:
    """Dotted names that the code imports anywhere, also inside functions; `from a import b` gives `a.b`."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            found |= {f"{start}.{alias.name}" for alias in node.names}
    return found


def forbidden_imports(module: str, code: str) -> list[str]:
    """Imports of ours that the module may not have."""
    folder = module.removeprefix("aiayn.").split(".")[0]
    allowed = MAY_IMPORT.get(folder, set()) | {folder}
    ours = (name for name in imports(code) if name.startswith((".", "aiayn.", "hydra_plugins.")))
    prefixes = (f"{folder}.", *(f"aiayn.{part}." for part in allowed))
    return sorted(name for name in ours if not f"{name}.".startswith(prefixes))


@pytest.mark.parametrize(
    ("module", "code", "forbidden"),
    [
        ("aiayn.model.encoder", "from aiayn.model.norm import PostNorm", []),
        ("aiayn.model.encoder", "from aiayn.data.batching import Batch", ["aiayn.data.batching.Batch"]),
        ("aiayn.model.encoder", "from ..data import batching", ["..data.batching"]),
        ("aiayn.inference.checkpoint", "import aiayn.data.tokenizer", []),
        ("aiayn.inference.checkpoint", "def f():\n    from aiayn.data import corpus", ["aiayn.data.corpus"]),
        ("aiayn.training.module", "import aiayn.callbacks.bleu", ["aiayn.callbacks.bleu"]),
        ("run", "from aiayn import schema", []),
        ("run", "from aiayn.tasks import train", ["aiayn.tasks.train"]),
    ],
)
def test_the_rule_for_imports_knows_good_from_bad(module, code, forbidden):
    assert forbidden_imports(module, code) == forbidden


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_run_one_way(path):
    assert not forbidden_imports(module_name(path), path.read_text())


@pytest.mark.parametrize("path", [path for path in MODULES if module_name(path) not in WRITERS], ids=relative)
def test_files_are_written_through_one_door(path):
    writes = re.compile(r"""\.write_(text|bytes)\(|np\.save\w*\((?!file)|\.savefig\((?!drawn)|open\(.*"wb?\"""")
    through_it_or_a_lock = re.compile("place.open|lock", re.IGNORECASE)
    lines = path.read_text().splitlines()
    found = [line for line in lines if writes.search(line) and not through_it_or_a_lock.search(line)]
    assert not found


@pytest.mark.parametrize("path", sorted((SOURCE / "aiayn" / "model").glob("*.py")), ids=relative)
def test_the_model_needs_torch_only(path):
    roots = {name.split(".")[0] for name in imports(path.read_text())}
    assert roots <= {"torch", "aiayn", *sys.stdlib_module_names}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_text_and_config_need_no_torch(module):
    path = next(path for path in MODULES if module_name(path) == module)
    assert not {name.split(".")[0] for name in imports(path.read_text())} & SLOW_TO_IMPORT


def test_composing_a_config_loads_no_torch():
    # What `python src/run.py --cfg job` does, with a look at what was loaded.
    code = f"""
import runpy, sys
sys.argv = ["run.py", "--cfg", "job"]
runpy.run_path({str(SOURCE / "run.py")!r}, run_name="__main__")
print("loaded", sorted({SLOW_TO_IMPORT} & set(sys.modules)))
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=relative)
def test_a_folder_has_at_most_fourteen_files(folder):
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 14


def test_the_house_has_one_level_of_folders():
    assert {len(path.relative_to(SOURCE / "aiayn").parts) for path in (SOURCE / "aiayn").rglob("*.py")} <= {1, 2}


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_files_and_functions_are_short(path):
    code = path.read_text()
    assert len(code.splitlines()) <= 400
    functions = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.FunctionDef)]
    assert not [node.name for node in functions if node.end_lineno - node.lineno >= 80]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_what_is_public_says_what_it_is(path):
    tree = ast.parse(path.read_text())
    public = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    assert ast.get_docstring(tree)
    assert not [node.name for node in public if not ast.get_docstring(node)]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_source_is_ascii(path):
    # Letters beyond it are written as escapes, so that what looks the same is the same.
    assert [line for line in path.read_text().splitlines() if not line.isascii()] == []


def names_given(code: str) -> set[str]:
    """Names that the code gives to something itself; what a library calls its arguments is not ours to choose."""
    given = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            given.add(node.id if isinstance(node, ast.Name) else node.attr)
    return given


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_source_and_target_are_written_out(path):
    short = re.compile(r"(?:^|_)(?:src|tgt|trg)(?:_|\d|$)", re.IGNORECASE)
    assert not [name for name in names_given(path.read_text()) if short.search(name)]


def test_no_file_is_a_drawer():
    drawers = re.compile(r"utils?|helpers?|common|misc|base_.*")
    assert not [relative(path) for path in PYTHON_FILES if drawers.fullmatch(path.stem)]
