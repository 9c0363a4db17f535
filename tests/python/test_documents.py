"""The documents and the examples, tried as a reader would: every python block of README.md and docs/ runs, what it shows after `>>>` is what
comes out, names and links that are written exist, the tables leave no public name out, and every numbered example says what is true."""
from __future__ import annotations

import doctest
import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

import weft
from conftest import ROOT
from weft._core import settings as _settings

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
NAME = re.compile(r"`(weft(?:\.\w+)+)[^`]*`")
PAGES = sorted(str(p.relative_to(ROOT)) for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
WITH_PYTHON = [page for page in PAGES if BLOCK.search((ROOT / page).read_text())]
OLD_SYSTEMS = ["docs/from-pyinn.md", "docs/from-torch-pconv.md", "docs/from-grouped3d.md", "docs/from-cudnn-torch.md", "docs/from-escoin.md",
               "docs/from-causal-conv1d.md"]
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("[0-9][0-9]_*"))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """A folder to run in, and the settings and the wisdom of before afterwards."""
    before = _settings.now()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield tmp_path
    _settings.restore(before)
    weft.backends.wisdom.autosave(None)
    weft.backends.wisdom.forget()


def blocks(page: str) -> list[tuple[int, str]]:
    """The line of each python block of a page, and its text."""
    text = (ROOT / page).read_text()
    return [(text.count("\n", 0, m.start(1)), m.group(1)) for m in BLOCK.finditer(text)]


def run_block(page: str, line: int, text: str, names: dict) -> None:
    if ">>>" not in text:
        exec(compile("\n" * line + text, page, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(text, names, page, page, line)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    assert not runner.failures, "".join(said)


def test_pages_of_the_old_systems_have_snippets():
    assert set(OLD_SYSTEMS + ["README.md", "docs/python.md"]) <= set(WITH_PYTHON)


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_snippets(page, scratch):
    """In the order of the page and with what came before."""
    names: dict = {"__name__": page}
    for line, text in blocks(page):
        run_block(page, line, text, names)


def test_a_wrong_snippet_fails(scratch):
    with pytest.raises(AssertionError, match="Expected"):
        run_block("page", 0, ">>> 1 + 1\n3\n", {})
    with pytest.raises(ZeroDivisionError):
        run_block("page", 0, "1 / 0\n", {})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target in LINK.findall((ROOT / page).read_text()):
        assert "://" in target or ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def find(name: str) -> object:
    value: object = weft
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("page", [*OLD_SYSTEMS, "docs/python.md", "docs/installing.md", "README.md"])
def test_names_exist(page):
    """`weft.some.name` in a page is a name of the package, or a file of the wheel."""
    for name in NAME.findall((ROOT / page).read_text()):
        if name.split(".")[-1] not in ("h", "pc", "so", "txt", "wisdom"):
            find(name)


PUBLIC = [("docs/python.md", "weft.functional"), ("docs/python.md", "weft.nn"), ("docs/python.md", "weft.backends"), ("docs/python.md", "weft.prune"),
          ("docs/python.md", "weft.sparse"), ("docs/python.md", "weft"), ("docs/from-cudnn-torch.md", "weft.torch7")]


def spelled_out(text: str) -> set[str]:
    """The words of a page, with `conv1d/2d/3d` and `Conv1d/2d/3d` read as three names."""
    words = set(re.findall(r"\w+", text))
    for stem, first, rest in re.findall(r"(\w*?)(\dd)((?:/\dd)+)", text):
        words.update(stem + rank for rank in (first, *rest.strip("/").split("/")))
    return words


@pytest.mark.parametrize("page, module", PUBLIC)
def test_no_public_name_is_left_out(page, module):
    words = spelled_out((ROOT / page).read_text())
    missing = [name for name in importlib.import_module(module).__all__ if name not in words | {"__version__"}]
    assert not missing, f"{page} does not mention {missing} of {module}"


# ---------------------------------------------------------------- examples

def test_examples_are_numbered_in_one_line():
    assert [name[:2] for name in EXAMPLES] == [f"{i:02}" for i in range(len(EXAMPLES))] and len(EXAMPLES) >= 10
    said = (ROOT / "README.md").read_text() + (ROOT / "docs" / "python.md").read_text()
    for name in EXAMPLES:
        assert name in said, f"{name} is in neither README.md nor docs/python.md"


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in\n{text}"
    return float(found.group(1))


def check_functions(out: str) -> None:
    assert number(r"largest difference (\S+)", out) < 1e-4
    assert "kernel torch\n" in out and "bits equal with 1 and 2 threads: True" in out


def check_training(out: str) -> None:
    first, last = number(r"step +0: torch +(\S+)", out), number(r"last step: torch +(\S+)", out)
    assert last < 0.7 * first and number(r"curves differ by at most (\S+)", out) < 1e-3
    assert "state_dict keys are the same: True" in out


def check_convert(out: str) -> None:
    assert "weft.Conv2d(" in out and "decision" in out and "folds BatchNorm2d" in out
    assert number(r"fused: largest difference (\S+)", out) < 1e-4 and "back again, bit for bit: True" in out


def check_partial(out: str) -> None:
    assert "outputs inside the hole with a plain convolution: wrong" in out and "with a partial convolution: 1.000" in out
    assert "holes left after each layer: 81 49 25 9 1 0" in out


def check_sparse(out: str) -> None:
    assert "SUCCESS => Same Outputs" in out and number(r"of the weights are 0: (\S+)%", out) == 90.0
    assert "layer" in out and number(r"pruned weights that training brought back: (\d+)", out) == 0


def check_wisdom(out: str) -> None:
    assert number(r"entries of wisdom: (\d+)", out) >= 1 and "the same kernel from the file: True" in out and "no wisdom for" in out


def check_torch7(out: str) -> None:
    assert "weft.SpatialConvolution(3 -> 16, 5x5, 1,1, 2,2)" in out and number(r"loss (\S+) ->", out) > 2 * number(r"loss \S+ -> (\S+)", out)
    assert "in parts as in one piece: True" in out


def check_grouped(out: str) -> None:
    assert "stored in volumes.wisdom: True" in out and number(r"largest difference (\S+)", out) < 1e-4 and "has no entry for" in out


def check_state_space(out: str) -> None:
    assert number(r"step 60: loss (\S+)", out) < 0.5 * number(r"step  0: loss (\S+)", out)
    assert number(r"differ by at most (\S+)", out) < 1e-4 and "goes on with" in out


CHECKS = {"02_functions.py": check_functions, "03_modules_and_training.py": check_training, "04_convert_a_network.py": check_convert,
          "05_partial_convolution.py": check_partial, "06_prune_and_run_sparse.py": check_sparse, "07_tune_and_keep_wisdom.py": check_wisdom,
          "08_torch7_names.py": check_torch7, "09_grouped3d.py": check_grouped, "11_state_space_model.py": check_state_space}


def test_every_python_example_is_checked():
    assert sorted(CHECKS) == [name for name in EXAMPLES if name.endswith(".py")]


@pytest.mark.parametrize("name", CHECKS)
def test_example(name, scratch, capsys, monkeypatch):
    path = ROOT / "examples" / name
    assert path.read_text().startswith('"""'), f"{name} does not begin by saying what one learns"
    monkeypatch.setattr(sys, "argv", [str(path)])
    torch.manual_seed(0)
    runpy.run_path(str(path), run_name="__main__")
    CHECKS[name](capsys.readouterr().out)
    assert {p.suffix for p in Path(scratch).iterdir()} <= {".wisdom", ".lock"}
