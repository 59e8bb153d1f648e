"""The rules of the house, read from the source: who may import whom, what runs before torch, sizes, names."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from aiayn.errors import extras

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
PYTHON_FILES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]

STAGES = {"data", "model", "training", "checkpoints", "inference", "evaluation", "cost"}
LEAVES = {
    "trust",
    "progress",
    "errors",
    "files",
    "identity",
    "naming",
    "paths",
    "schema",
    "stored_config",
    "terminal",
    "arguments",
}
# What each folder may import of ours besides itself; a module stands for itself, a folder for all its modules.
MAY_IMPORT = {
    "data": {"progress", "files"},
    "model": set(),
    "evaluation": {"progress"},  # of TER
    "cost": {"model", "data.batching", "data.step_size", "training.loss"},
    "checkpoints": {"model", "data.tokenizer", "files", "identity", "stored_config", "trust"},
    "inference": {
        *("model", "data.batching", "data.ragged", "data.tokenizer", "data.trees"),
        *("checkpoints", "progress", "files"),
    },
    "training": {"model", "data", "checkpoints", "files"},
    "runs": {"evaluation.metric", "schema", "files", "identity", "naming", "stored_config", "terminal"},
    "report": {"runs", "evaluation", "schema", "files", "identity", "naming", "stored_config", "terminal", "trust"},
    "callbacks": {*STAGES, "files", "progress", "runs"},  # which files of a folder are the run's
    "hydra_plugins": {"runs", "paths", "schema", "errors", "files", "identity"},
    "analysis": {"model", "data.batching", "data.tokenizer", "inference", "evaluation", "progress", "files"},
    "serving": {"model", "data.tokenizer", "inference", "analysis"},
    "problems": {*STAGES, "progress", "files", "terminal"},
    "commands": {*STAGES, *LEAVES, "problems", "analysis", "callbacks", "serving", "runs", "report"},
    "progress": {"terminal"},
    "terminal": set(),
    "files": set(),
    "identity": {"files", "trust"},
    "naming": {"identity"},
    "trust": set(),
    "paths": {"files"},
    "schema": {"paths"},
    "resolvers": {"files", "identity", "schema"},
    "arguments": {"schema"},
    "stored_config": {"schema"},
    "aiayn": {"inference", "files"},
    "errors": {"schema"},
    "run": {"paths", "schema", "resolvers", "errors"},  # and the task that the config names
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


SLOW_TO_IMPORT = {"torch", "lightning", "torchmetrics"}
# Needed before a task has started, or in processes that only handle text.
WITHOUT_TORCH = [
    *("run", "aiayn.errors", "aiayn.identity", "aiayn.paths", "aiayn.resolvers", "aiayn.schema", "aiayn.trust"),
    *(f"aiayn.commands.{name}" for name in ("report", "status", "dashboard", "diff", "score", "compare")),
    *(
        module_name(path)
        for path in MODULES
        if path.parent.name in ("evaluation", "metrics", "runs", "report", "aiayn_launcher", "corpora")
    ),
    *("aiayn.analysis.figures", "aiayn.cost.estimate"),
    *(f"aiayn.data.{name}" for name in ("parallel_text", "cleaning", "tokenizer", "corpus")),
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
        ("aiayn.model.layer", "from aiayn.model.norm.post import PostNorm", []),
        ("aiayn.model.layer", "from aiayn.data.batching import Batch", ["aiayn.data.batching.Batch"]),
        ("aiayn.model.layer", "from ..data import batching", ["..data.batching"]),
        ("aiayn.checkpoints.checkpoint", "import aiayn.data.tokenizer", []),
        ("aiayn.checkpoints.checkpoint", "def f():\n    from aiayn.data import corpus", ["aiayn.data.corpus"]),
        ("aiayn.training.module", "import aiayn.callbacks.bleu", ["aiayn.callbacks.bleu"]),
        ("run", "from aiayn import schema", []),
        ("run", "from aiayn.commands import train", ["aiayn.commands.train"]),
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


@pytest.mark.parametrize("path", sorted((SOURCE / "aiayn" / "model").rglob("*.py")), ids=relative)
def test_the_model_needs_torch_only(path):
    roots = {name.split(".")[0] for name in imports(path.read_text())}
    assert roots <= {"torch", "aiayn", *sys.stdlib_module_names}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_text_and_config_need_no_torch(module):
    path = next(path for path in MODULES if module_name(path) == module)
    assert not {name.split(".")[0] for name in imports(path.read_text())} & SLOW_TO_IMPORT


# Alone may import what an extra of pyproject.toml brings when they are imported themselves.
OF_EXTRAS = ("aiayn.serving.", "aiayn.report.dashboard", "hydra_plugins.aiayn_launcher._slurm_launcher")


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_training_needs_no_package_of_an_extra(path):
    at_once = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    words = {word for node in at_once for name in imports(ast.unparse(node)) for word in name.split(".")}
    found = words & set.union(*extras().values())
    assert not found or module_name(path).startswith(OF_EXTRAS)


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


# Rooms of the code, by the groups of conf whose files name what is in them.
ROOMS = {
    **{f"model/{part}": f"aiayn.model.{part}" for part in ("attention", "position", "feed_forward", "norm")},
    **{f"training/{part}": f"aiayn.training.{part}" for part in ("optimizer", "schedule", "loss")},
    "model": "aiayn.model",
    "data": "aiayn.data.corpora",
    "metrics": "aiayn.evaluation.metrics",
    "problem": "aiayn.problems",
    "callbacks": "aiayn.callbacks",
    "task": "aiayn.commands",
}
# Whose folders lie below a stage's.
PARTS = {tuple(room.split(".")[1:]) for room in ROOMS.values() if room.count(".") == 2}


def named(config: object) -> list[str]:
    """What a YAML file names under `_target_` or `task`, at any depth."""
    if not isinstance(config, dict):
        return []
    here = [config[key] for key in ("_target_", "task") if isinstance(config.get(key), str)]
    return here + [name for value in config.values() for name in named(value)]


CONFIGS = [(group, path) for group in ROOMS for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "path"), CONFIGS, ids=lambda value: getattr(value, "stem", None))
def test_the_code_mirrors_conf(group, path):
    for name in named(yaml.safe_load(path.read_text())):
        module = name.rpartition(".")[0]
        if module.startswith("aiayn.") and not module.startswith("aiayn.data.cleaning"):
            assert module.rpartition(".")[0] == ROOMS[group]
            here = module.rpartition(".")[2]
            assert group in ("data", "model") or path.stem.startswith(here)  # bleu_lowercase is of bleu


def test_a_stage_is_flat_but_for_its_parts():
    folders = {path.relative_to(SOURCE / "aiayn").parent.parts for path in (SOURCE / "aiayn").rglob("*.py")}
    assert {parts for parts in folders if len(parts) > 1} <= PARTS


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
