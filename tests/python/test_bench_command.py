"""`python -m weft` asked wrongly: what it says and returns."""
from __future__ import annotations

import sys

import pytest
import torch
from weft import bench
from weft._core import library as _library
from weft.__main__ import main


@pytest.mark.parametrize("args, code, text", [
    (["bench", "--set", "nope"], 2, "--set: is 'nope', allowed: cpu, gpu, headline, headline_cuda, operators, regret, short, short_cuda, models"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3", "--set", "cpu"], 2, "expects PROBLEM... or --set NAME, not both"),
    (["bench"], 2, "expects PROBLEM... or --set NAME"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3", "--batch", "4"], 2, "--batch goes with --set models\n"),
    (["bench", "--set", "cpu", "--device", "cpu"], 2, "--device goes with --set models or regret\n"),
    (["bench", "--set", "cpu", "--models", "lenet5"], 2, "--models goes with --set models"),
    (["bench", "--set", "models", "--models", "lenet6"], 2, "--models: 'lenet6' is no model, allowed: mobilenet_v1, convnext_t"),
    (["bench", "--set", "models", "--models", ","], 2, "--models: names no model, allowed: mobilenet_v1"),
    (["bench", "--set", "models", "--pass", "bwd"], 2, "--pass goes with problems"),
    (["bench", "--set", "models", "--batch", "0"], 2, "--batch: is '0', allowed: a whole number from 1 to 1048576"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3", "--rounds", "x"], 2, "--rounds: is 'x', allowed: a whole number from 1 to 1001"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3", "--threads", "100000"], 2, "--threads: is '100000', allowed: a whole number from 1 to 1024"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3", "--against", "/nowhere/rows.json"], 2, "--against: is '/nowhere/rows.json', allowed: a file of rows that --json wrote"),
    (["bench", "relu1d:fwd:f32:ncw:n1c2w3:"], 2, "python -m weft bench: relu1d:fwd:f32:ncw:n1c2w3:: problem, column "),
    (["--cflags", "info"], 2, "--cflags and --libs go without a command, got 'info'"),
    (["bench", "--set", "models", "--device", "tpu"], 2, "invalid choice: 'tpu'"),
    (["bench", "dgmm:fwd:f32:dense:n1h2w2:side1", "--json", "/nowhere/rows.json"], 1, "/nowhere/rows.json cannot be written: there is no directory /nowhere"),
    *(pytest.param(["bench", *asked], 2, "this PyTorch has no CUDA device", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"))
      for asked in (["--set", "models", "--device", "cuda"], ["relu1d:fwd:f32:ncw:n1c2w3@cuda"]))])
def test_wrong_commands(args, code, text, capsys):
    try:
        returned = main(args)
    except SystemExit as exit:
        returned = exit.code
    assert returned == code and text in capsys.readouterr().err


def test_a_file_is_refused_before_measuring(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("measured"))
    for file, why in ((tmp_path, "it is a directory"), (tmp_path / "no" / "x", f"there is no directory {tmp_path / 'no'}")):
        assert bench.run(["relu1d:fwd:f32:ncw:n1c2w3"], file=str(file)) == 1
        assert f"{file} cannot be written: {why}" in capsys.readouterr().err
    assert bench.refusal(None) == bench.refusal(str(tmp_path / "x")) == ""


def test_a_file_that_cannot_be_written_after_all(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "refusal", lambda file: "")
    assert bench.run(["relu1d:fwd:f32:ncw:n1c2w3"], rounds=1, file=str(tmp_path)) == 1
    assert capsys.readouterr().err.endswith(f"{tmp_path} cannot be written: Is a directory\n")


def test_flags_of_a_c_program_that_are_not_there(monkeypatch, tmp_path, capsys):
    """What is missing is named; what is not asked for may be missing."""
    monkeypatch.setattr(_library, "path", tmp_path / "x" / "libweft_torch.so")
    monkeypatch.setattr(sys.modules[main.__module__], "__file__", str(tmp_path / "a" / "b" / "c" / "__main__.py"))
    for asked, missing in ((["--cflags"], "weft.h"), (["--libs"], "libweft.so"), (["--cflags", "--libs"], "weft.h")):
        assert main(asked) == 1
        assert capsys.readouterr().err == f"python -m weft: {missing} was not found beside {_library.path}\n"
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "libweft.so").touch()
    assert main(["--libs"]) == 0 and capsys.readouterr().out == f"-L{tmp_path}/x -Wl,-rpath,{tmp_path}/x -lweft\n"
    assert main(["--cflags", "--libs"]) == 1 and "weft.h was not found" in capsys.readouterr().err
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "weft.h").touch()
    assert main(["--cflags"]) == 0 and capsys.readouterr().out == f"-I{tmp_path}/include\n"
