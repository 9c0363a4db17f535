"""What is public: every name is in the tables, documented with an example that runs, typed, called as its twin is, and refuses wrong input."""
from __future__ import annotations

import doctest
import inspect
import re
import typing
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.functional as W
from everything import ELSEWHERE, FUNCTIONS, LAYERS
from wrong_inputs import WRONG

ROOT = Path(__file__).resolve().parents[2]
SPACES = {"weft": weft, "weft.functional": W, "weft.nn": weft.nn, "weft.backends": weft.backends, "weft.backends.wisdom": weft.backends.wisdom,
          "weft.sparse": weft.sparse, "weft.prune": weft.prune, "weft.torch7": weft.torch7}
SETTINGS = [name for name in weft.backends.__all__ if isinstance(getattr(type(weft.backends), name, None), property)]
NAMES = [f"{space}.{name}" for space, module in SPACES.items() for name in module.__all__ if name != "__version__" and name not in SETTINGS]


def named(path):
    space, name = path.rsplit(".", 1)
    return getattr(SPACES[space], name)


# ---------------------------------------------------------------------------------------------- in the tables

def test_every_function_is_in_the_table():
    assert sorted(FUNCTIONS) == sorted(W.__all__) and len(set(W.__all__)) == len(W.__all__)


def test_every_module_is_in_the_table():
    assert sorted([*LAYERS, *ELSEWHERE]) == sorted(weft.nn.__all__)


def test_every_function_has_wrong_inputs():
    """All but those that take no argument."""
    functions = [(path.rsplit(".", 1)[1], value) for path in NAMES if inspect.isfunction(value := named(path)) and "wisdom." not in path]
    missing = {name for name, value in functions if inspect.signature(value).parameters} - {row.name for row in WRONG}
    assert len(functions) > len(W.__all__) and not missing and "wisdom" in {row.name for row in WRONG}


@pytest.mark.parametrize("row", WRONG, ids=lambda row: f"{row.name}-{row.text[:40]}")
def test_wrong_input(row):
    with pytest.raises(row.kind, match=row.text):
        row.call()


# ---------------------------------------------------------------------------------------------- documented

@pytest.fixture
def _as_before(tmp_path, monkeypatch):
    """Examples write files and change settings."""
    monkeypatch.chdir(tmp_path)
    old = {name: getattr(weft.backends, name) for name in SETTINGS}
    yield
    weft.backends.set_flags(**old)
    weft.backends.pin(None)
    weft.backends.wisdom.autosave(None)
    weft.backends.wisdom.forget()
    weft._core.library.lib.weft_torch_unlearn()


def _examples(path, text):
    return doctest.DocTestParser().get_doctest(text, {"torch": torch, "weft": weft}, path, None, 0)


@pytest.mark.parametrize("path", [*SPACES, *NAMES])
def test_example_runs(path, _as_before):
    text = inspect.getdoc(SPACES[path] if path in SPACES else named(path)) or ""
    test = _examples(path, text)
    assert test.examples, f"{path}: its docstring has no example"
    lines = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test, out=lines.append)
    assert not failed, "".join(lines)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_documented(name):
    assert re.search(rf"^    {name}\s\s+\S", weft.backends.__doc__, re.M) and name in weft.backends.__all__


# ---------------------------------------------------------------------------------------------- typed

def _parameters(function):
    """Of each form of a function."""
    forms = getattr(typing, "get_overloads", lambda f: [])(function) or [function]
    return [(name, p) for f in forms for name, p in inspect.signature(f).parameters.items() if name not in ("self", "cls")]


@pytest.mark.parametrize("path", [p for p in NAMES if not inspect.ismodule(named(p))])
def test_type_hints(path):
    value = named(path)
    if inspect.isclass(value):
        methods = [item for c in value.__mro__ if c.__module__.startswith("weft.") for item in vars(c).items()]
        own = [f for n, f in methods if inspect.isfunction(f) and (n == "__init__" or n[0] != "_")]
    else:
        own = [value]
    for function in own:
        bare = [name for name, p in _parameters(function) if p.annotation is p.empty]
        assert not bare, f"{path}: {function.__qualname__} has no type for {', '.join(bare)}"
        assert inspect.signature(function).return_annotation is not inspect.Signature.empty, f"{path}: {function.__qualname__} does not say what it returns"


def test_marked_as_typed():
    assert (Path(weft.__file__).parent / "py.typed").is_file()


# ---------------------------------------------------------------------------------------------- called as the twin is

_CONV = "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
_TURNED = "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"
_AVERAGE = "input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True"
# builtins, by PyTorch's documentation: they have no signature to ask for
DOCUMENTED = {
    **{f"conv{r}d": _CONV for r in (1, 2, 3)}, **{f"conv_transpose{r}d": _TURNED for r in (1, 2, 3)}, "avg_pool1d": _AVERAGE,
    **{f"avg_pool{r}d": f"{_AVERAGE}, divisor_override=None" for r in (2, 3)}, "adaptive_avg_pool1d": "input, output_size",
}
OURS = {"clipped_relu", "ncrelu", "conv2d_depthwise", "dgmm", "cdgmm", "im2col", "col2im",
        *(f"{kind}_conv{turned}{r}d" for r in (1, 2, 3) for kind, turned in (("partial", ""), ("partial", "_transpose"), ("sparse", "")))}
RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")       # of two forms


def _positional(function):
    """Names and defaults; whatever may only be named is weft's own."""
    return [(n, p.default) for n, p in inspect.signature(function).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD and n != "self"]


def _written(text):
    space = {}
    exec(f"def f({text}): pass", space)
    return _positional(space["f"])


def test_every_function_has_a_twin_or_is_ours():
    assert OURS <= set(W.__all__)
    assert all(hasattr(F, n) or hasattr(torch, n) for n in W.__all__ if n not in OURS)


@pytest.mark.parametrize("name", [n for n in W.__all__ if n not in OURS and n not in RECURRENT])
def test_signature_of_the_twin(name):
    """The twin's arguments in its order with its defaults; what weft adds can only be named."""
    twin = getattr(F, f"{name}_with_indices", None) or getattr(F, name)    # max_pool: of two functions, the one that says both
    assert _positional(getattr(W, name)) == (_written(DOCUMENTED[name]) if name in DOCUMENTED else _positional(twin))
    assert all(p.kind is not p.VAR_KEYWORD and p.kind is not p.VAR_POSITIONAL for p in inspect.signature(getattr(W, name)).parameters.values())


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="this Python keeps no overloads")
@pytest.mark.parametrize("name", RECURRENT)
def test_forms_of_the_twin(name):
    """Both forms of a recurrent function, as the schemas of PyTorch's operators name their arguments."""
    ours = [[n for n, _ in _positional(form)] for form in typing.get_overloads(getattr(W, name))]
    packet = getattr(torch.ops.aten, name)
    assert ours == [[a.name for a in form._schema.arguments] for form in (packet.input, packet.data)]


@pytest.mark.parametrize("name", [n for n in LAYERS if hasattr(torch.nn, n)])
def test_constructor_of_the_twin(name):
    ours, twin = (_positional(getattr(m, name).__init__) for m in (weft.nn, torch.nn))
    assert ours[:len(twin)] == twin and [n for n, _ in ours[len(twin):]] in ([], ["inplace"])    # Tanh and Sigmoid write in place, too


# ---------------------------------------------------------------------------------------------- a thin client

BINDING = sorted((ROOT / "python" / "csrc").iterdir())
CLIENT = sorted((ROOT / "python" / "weft").rglob("*.py"))
READS = re.compile(r"\.(item|tolist|numpy)\(|\bnumpy\b|\bfor \w+ in \w+\.flatten\(|np\.")
# what may read elements, and why
ALLOWED = {
    "_bench/twin.py": "the benchmark's check that both sides agree: one number to print",
    "functional/pool.py": "output_size given as a tensor of sizes",
    "functional/rnn.py": "the seed of dropout, drawn from PyTorch's generator",
    "prune.py": "where the dropped weights of one layer begin and end in the list of all",
}


def test_the_binding_is_C():
    assert BINDING and {p.suffix for p in BINDING} <= {".c", ".h", ".def"}
    for path in BINDING:
        wrong = re.findall(r"#\s*include\s*<(?:(?:torch|ATen|c10|aten)/.*|[a-z_]+>)|extern \"C\"|\btemplate\s*<|\bnamespace\b|\bstd::", path.read_text())
        assert not wrong, f"{path.name}: {wrong}"


def test_no_element_is_touched_in_Python():
    found = {}
    for path in CLIENT:
        code = re.sub(r'""".*?"""|#[^\n]*', lambda m: "\n" * m.group().count("\n"), path.read_text(), flags=re.S)
        for number, line in enumerate(code.splitlines(), 1):
            if READS.search(line):
                found.setdefault(str(path.relative_to(ROOT / "python" / "weft")), []).append((number, line.strip()))
    unknown = {name: lines for name, lines in found.items() if name not in ALLOWED}
    assert not unknown, unknown
    assert set(ALLOWED) <= set(found), "an exception that is no longer needed"
