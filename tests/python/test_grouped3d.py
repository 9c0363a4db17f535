"""Grouped3D: the convolution beside torch.nn.Conv3d, tuning and its file, the old state_dict, the bar, wrong calls."""
from __future__ import annotations

import copy
import doctest
import inspect
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

import fresh
import weft
from weft.nn import grouped3d

QUICK = {"seconds": 0.02}
CASES = {
    "depthwise": (dict(I=6, C=6, K=3, groups=6), (2, 6, 5, 6, 7)),
    "dense": (dict(I=4, C=6, K=3), (1, 4, 5, 5, 5)),
    "between": (dict(I=4, C=8, K=(1, 3, 2), groups=2, padding=(0, 1, 1), bias=True, stride=(1, 2, 1), dilation=(1, 1, 2)), (2, 4, 4, 6, 7)),
    "multiplier": (dict(I=3, C=6, K=2, groups=3, bias=True, padding="same"), (1, 3, 4, 4, 4)),
    "unbatched": (dict(I=4, C=4, K=3, groups=4, padding=1), (4, 4, 5, 6)),
}


@pytest.fixture(autouse=True)
def _fresh():
    """Nothing known from before, and the settings as they were."""
    weft.backends.wisdom.forget()
    grouped3d._ready.clear(), grouped3d._loaded.clear()
    yield
    weft.backends.wisdom.forget()


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "tc_group3d.pt")


def twin_of(net):
    twin = torch.nn.Conv3d(net.in_channels, net.out_channels, net.kernel_size, net.stride, net.padding, net.dilation, net.groups, net.bias is not None)
    twin.to(net.weight.device, net.weight.dtype).load_state_dict(net.state_dict())
    return twin


def gradients(net, x):
    x = x.clone().requires_grad_()
    y = net(x)
    return [y, *torch.autograd.grad(y, (x, *net.parameters()), torch.ones_like(y))]


# ---------------------------------------------------------------------------------------------- the convolution

def test_arguments():
    parameters = inspect.signature(weft.Grouped3D).parameters.values()
    given = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in parameters]
    assert ", ".join(given[:9]) == "I, C, K, groups=1, padding=0, bias=False, from_cache=False, cache_file='tc_group3d.pt', tuner_config=None"
    assert given[9:11] == ["stride=1", "dilation=1"] and all(p.kind is p.KEYWORD_ONLY for p in list(parameters)[9:])
    assert weft.Conv3DTC is weft.Grouped3D is weft.nn.Grouped3D is weft.nn.Conv3DTC and weft.TunerConfig is weft.nn.TunerConfig
    assert issubclass(weft.Grouped3D, weft.nn.Conv3d)


@pytest.mark.parametrize("case, dtype", [*((case, torch.float32) for case in CASES), ("between", torch.float64), ("between", torch.bfloat16)])
def test_twin(case, dtype, device, file):
    settings, shape = CASES[case]
    net = weft.Grouped3D(**settings, cache_file=file, tuner_config=QUICK, device=device, dtype=dtype)
    x = torch.randn(shape, device=device, dtype=dtype)
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 5e-2}[dtype]
    for got, want in zip(gradients(net, x), gradients(twin_of(net), x)):
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * want.abs().max().item())
    if x.dim() == 5 and dtype == torch.float32:
        last = x.to(memory_format=torch.channels_last_3d)
        y = net(last)
        torch.testing.assert_close(y, net(x), rtol=tolerance, atol=tolerance * y.abs().max().item())
        assert y.is_contiguous(memory_format=torch.channels_last_3d)


def test_the_case_of_the_source(device, file):
    """Groups of one channel, kernel 3, no padding; smaller than 4x64x50^3 by its batch and volume alone."""
    net = weft.Grouped3D(64, 64, 3, groups=64, cache_file=file, tuner_config={"seconds": 0.1}).to(device)
    x = torch.randn(1, 64, 8, 8, 8, device=device)
    for got, want in zip(gradients(net, x), gradients(twin_of(net), x)):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------------------------------------- tuning

def lines(file):
    return [line.split() for line in Path(file).read_text().splitlines() if not line.startswith("#")]


def test_the_first_forward_of_a_shape_tunes(device, file):
    net, x = weft.Grouped3D(4, 4, 3, groups=4, bias=True, cache_file=file, tuner_config=QUICK).to(device), torch.randn(1, 4, 6, 6, 6, device=device)
    before = {name: getattr(weft.backends, name) for name in ("benchmark", "wisdom_only", "measure_seconds")}
    net(x)
    problems = {line[3].split("@")[0] for line in lines(file)}
    where = "f32:ncdhw:n1c4d6h6w6:o4k3g4"
    assert problems == {f"conv3d:fwd:{where}:bias", f"conv3d:bwd_data:{where}", f"conv3d:bwd_weights:{where}:bias", f"conv3d:bwd:{where}:bias"}
    stored = os.stat(file).st_mtime_ns
    net(x), net(torch.randn_like(x)).sum().backward()
    assert os.stat(file).st_mtime_ns == stored          # a shape that was tuned is not touched again
    net(torch.randn(2, 4, 6, 6, 6, device=device))
    assert len({line[3] for line in lines(file)}) == 8
    assert {name: getattr(weft.backends, name) for name in before} == before


def test_what_does_not_pose_a_problem_does_not_tune(device, file):
    net = weft.Grouped3D(4, 4, 3, groups=4, cache_file=file, tuner_config=QUICK).to(device)
    assert net(torch.randn(0, 4, 6, 6, 6, device=device)).shape == (0, 4, 4, 4, 4)
    assert net.to("meta")(torch.empty(1, 4, 6, 6, 6, device="meta")).shape == (1, 4, 4, 4, 4)
    assert not os.path.exists(file)


@pytest.mark.parametrize("other", [{"dilation": 2}, {"stride": 2}, {"padding": 1}, {"groups": 2}, {"bias": True}], ids=str)
def test_each_geometry_is_tuned_by_itself(other, file):
    """A module that differs in one thing alone has problems of its own: tuned, or an error where the file has none of them."""
    settings, x = {"groups": 4, "cache_file": file, "tuner_config": QUICK}, torch.randn(1, 4, 7, 7, 7)
    weft.Grouped3D(4, 4, 3, **settings)(x)
    known = {line[3] for line in lines(file)}
    with pytest.raises(RuntimeError, match="has no entry for conv3d:fwd"):
        weft.Grouped3D(4, 4, 3, from_cache=True, **{**settings, **other})(x)
    weft.Grouped3D(4, 4, 3, **{**settings, **other})(x)
    assert len({line[3] for line in lines(file)} - known) == 4 - ("bias" in other)


def test_compiled_and_transformed(file):
    net, x = weft.Grouped3D(4, 4, 3, groups=4, cache_file=file, tuner_config=QUICK), torch.randn(2, 1, 4, 6, 6, 6)
    expected = twin_of(net)(x[0])
    torch.testing.assert_close(torch.compile(net, backend="eager", fullgraph=True)(x[0]), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.vmap(net)(x)[0], expected, rtol=1e-4, atol=1e-4)
    assert not os.path.exists(file)
    torch.testing.assert_close(torch.fx.symbolic_trace(torch.nn.Sequential(net))(x[0]), expected, rtol=1e-4, atol=1e-4)
    assert {line[3].split(":")[2] for line in lines(file)} == {"f32"}   # in fx it is a leaf: the module itself runs, and tunes
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(x[0]).dtype == torch.bfloat16
    assert {line[3].split(":")[2] for line in lines(file)} == {"f32", "bf16"}


def test_the_time_is_limited(file, monkeypatch):
    """Each of the four problems gets its share, which is what the planner is told; what the process had comes back."""
    told, real = [], weft._core.library.set_config
    monkeypatch.setattr(weft._core.library, "set_config", lambda *args: (told.append(args), real(*args)))
    net = weft.Grouped3D(8, 8, 3, groups=8, cache_file=file, tuner_config=weft.TunerConfig(seconds=0.05))
    net(torch.randn(1, 8, 8, 8, 8))
    assert [(args[0], args[-1]) for args in told] == [(2, 0.0125), (0, 0.0)]


# ---------------------------------------------------------------------------------------------- the file

def cached(file, **settings):
    return weft.Grouped3D(4, 4, 3, groups=4, from_cache=True, cache_file=file, **settings)


def tuned(file, shape=(1, 4, 6, 6, 6), device="cpu", forget=True):
    """A file with the entries of one shape, as another process would have left it."""
    net, x = weft.Grouped3D(4, 4, 3, groups=4, cache_file=file, tuner_config=QUICK).to(device), torch.randn(shape, device=device)
    y = net(x)
    if forget:
        weft.backends.wisdom.forget()
        grouped3d._ready.clear(), grouped3d._loaded.clear()
    return net, x, y


def test_from_cache(device, file):
    net, x, y = tuned(file, device=device)
    known = len(lines(file))
    other = cached(file).to(device)
    assert weft.backends.wisdom.count() == known
    other.load_state_dict(net.state_dict())
    torch.testing.assert_close(other(x), y)
    gradients(other, x)
    assert weft.backends.wisdom.count() == known        # nothing was measured


def test_the_file_decides(file):
    """What it says runs. Of the kernels that were measured one is kept for each problem."""
    net, x, _ = tuned(file)
    measured = {line[3]: line for line in lines(file)}
    weft_s = next(line[4] for problem, line in measured.items() if ":fwd:" in problem)
    torch_s = [[*line[:4], "torch", "v1", "1", "0"] for line in measured.values()]
    for kernel, rows in (("torch", torch_s), (weft_s, measured.values()), ("torch", torch_s)):
        Path(file).write_text("\n".join(map(" ".join, rows)) + "\n")
        weft.backends.wisdom.forget()
        grouped3d._ready.clear()
        cached(file)(x)
        assert weft.backends.kernels() == kernel


def test_a_file_that_was_written_again_is_read_again(file):
    """Of the same size, with other kernels."""
    net, x, _ = tuned(file)
    text = Path(file).read_text()
    first = next(line for line in lines(file) if ":fwd:" in line[3] and line[4] != "torch")   # of several that were measured
    rows = [" ".join([*first[:4], *kernel, "1", "0"]) for kernel in (first[4:6], ["torch", "v1"])]
    for row in rows:
        Path(file).write_text(row.ljust(max(map(len, rows))) + "\n")   # loading adds to what is known
        os.utime(file, ns=(rows.index(row) + 1, rows.index(row) + 1))
        weft.backends.wisdom.forget()
        cached(file)
        assert weft.backends.wisdom.count() == 1
    assert text


def test_a_missing_entry(device, file):
    tuned(file, device=device)
    net = cached(file).to(device)
    with pytest.raises(RuntimeError) as caught:
        net(torch.randn(3, 4, 6, 6, 6, device=device))
    assert f"cache_file: {file!r} has no entry for conv3d:fwd:f32:ncdhw:n3c4d6h6w6:o4k3g4@{device.type}" in str(caught.value)
    assert "from_cache=False tunes it and stores it there" in str(caught.value)
    assert not weft.backends.wisdom_only and weft.backends.wisdom.count() == len(lines(file))
    with pytest.raises(RuntimeError, match="has no entry"):     # and again
        net(torch.randn(3, 4, 6, 6, 6, device=device))
    weft.Grouped3D(4, 4, 3, groups=4, cache_file=file, tuner_config=QUICK).to(device)(torch.randn(3, 4, 6, 6, 6, device=device))
    assert net(torch.randn(3, 4, 6, 6, 6, device=device)).shape == (3, 4, 4, 4, 4)


def test_other_errors_are_their_own(file):
    tuned(file)
    with pytest.raises(RuntimeError, match="input: has 3 channels, allowed with groups=4"):
        cached(file)(torch.randn(1, 3, 6, 6, 6))


def test_one_file_serves_many(file):
    """Entries are added; those of other machines stay."""
    tuned(file, forget=False)       # what was forgotten is taken out of a file that is saved next
    foreign = "cpu:ANOTHER:avx2 0.1.0 t2 conv3d:fwd:f32:ncdhw:n1c4d6h6w6:o4k3g4@cpu conv_ref v1 1 0"
    with open(file, "a") as out:
        out.write(foreign + "\n")
    before = {line[3] for line in lines(file)}
    tuned(file, (2, 4, 6, 6, 6))
    assert foreign in Path(file).read_text().splitlines() and before < {line[3] for line in lines(file)}
    assert cached(file)(torch.randn(1, 4, 6, 6, 6)).shape == (1, 4, 4, 4, 4)


CHILD = """
import sys, torch, weft
net = weft.Grouped3D(4, 4, 3, groups=4, from_cache=sys.argv[1] == "load", cache_file="tc_group3d.pt", tuner_config={"seconds": 0.02, "progress": sys.argv[2] == "bar"})
torch.set_num_threads(1)
print(net(torch.ones(1, 4, 6, 6, 6)).shape, weft.backends.wisdom.count())
"""


def child(folder, *args):
    return fresh.run(CHILD, *args, cwd=folder)


def test_from_one_process_to_the_next(tmp_path):
    stored = child(tmp_path, "store", "bar")
    assert stored.returncode == 0 and os.path.exists(tmp_path / "tc_group3d.pt"), stored.stderr
    assert "Grouped3D 1x4x6x6x6 [....................] 0/4 forward" in stored.stderr
    assert "[####################] 4/4 stored in tc_group3d.pt" in stored.stderr and stored.stderr.endswith("\n")
    loaded = child(tmp_path, "load", "quiet")
    assert loaded.returncode == 0 and loaded.stdout == stored.stdout and loaded.stderr == ""


@pytest.mark.parametrize("progress, terminal, shown", [(None, True, True), (None, False, False), (True, False, True), (False, True, False)])
def test_the_bar(progress, terminal, shown, file, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    net = weft.Grouped3D(4, 4, 3, groups=4, cache_file=file, tuner_config={"seconds": 0.02, "progress": progress})
    net(torch.randn(1, 4, 6, 6, 6))
    text = capsys.readouterr().err
    assert ("2/4 gradient of the weights" in text) == shown and (text == "") == (not shown)


# ---------------------------------------------------------------------------------------------- state

@pytest.mark.parametrize("prefix", ["", "1."])
def test_the_old_state_dict(prefix, file):
    """W of (groups, C/groups, I/groups, kT, kH, kW); the expected values are the sum over one group and one place, written out."""
    net = weft.Grouped3D(4, 6, (1, 2, 3), groups=2, cache_file=file, tuner_config=QUICK)
    W, x = torch.randn(2, 3, 2, 1, 2, 3), torch.randn(1, 4, 3, 4, 5)
    holder = torch.nn.Sequential(torch.nn.Identity(), net) if prefix else net
    state = {prefix + "W": W}
    assert holder.load_state_dict(state).missing_keys == [] and list(state) == [prefix + "W"]
    assert torch.equal(net.W, W) and list(net.state_dict()) == ["weight"] and net.W.data_ptr() == net.weight.data_ptr()
    y = holder(x)
    for o, t, h, w in ((0, 0, 0, 0), (4, 2, 1, 2), (5, 1, 2, 1)):
        group, within = divmod(o, 3)
        expected = (x[0, 2 * group:2 * group + 2, t:t + 1, h:h + 2, w:w + 3] * W[group, within]).sum()
        torch.testing.assert_close(y[0, o, t, h, w], expected, rtol=1e-5, atol=1e-5)


def test_state_dicts(file):
    net, twin = weft.Grouped3D(4, 4, 3, groups=4, bias=True, cache_file=file), torch.nn.Conv3d(4, 4, 3, groups=4)
    net.load_state_dict(twin.state_dict()), twin.load_state_dict(net.state_dict())
    with pytest.raises(RuntimeError, match=r"W: has the shape \[4, 1, 3, 3, 3\], allowed: \[4, 1, 1, 3, 3, 3\]"):
        net.load_state_dict({"W": torch.zeros(4, 1, 3, 3, 3), "bias": torch.zeros(4)})
    assert torch.equal(net.weight, twin.weight)
    with pytest.raises(RuntimeError, match='Missing key.*"bias"'):
        net.load_state_dict({"W": torch.zeros(4, 1, 1, 3, 3, 3)})
    with pytest.raises(RuntimeError, match='Unexpected key.*"W"'):
        net.load_state_dict({**twin.state_dict(), "W": torch.zeros(4, 1, 1, 3, 3, 3)})


def test_copies_and_printing(device, file):
    net = weft.Grouped3D(4, 4, 3, groups=4, cache_file=Path(file), tuner_config=QUICK).to(device)
    x = torch.randn(1, 4, 6, 6, 6, device=device)
    expected = net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(other(x), expected) and other.tuner_config == net.tuner_config and repr(other) == repr(net)
    assert repr(net) == f"weft.Grouped3D(4, 4, kernel_size=(3, 3, 3), stride=(1, 1, 1), groups=4, bias=False, cache_file={file!r})"
    assert "from_cache=True" in repr(cached(file)) and net.double()(x.double()).dtype == torch.float64


def test_examples(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = doctest.testmod(grouped3d, extraglobs={"torch": torch, "weft": weft})
    assert done.failed == 0 and done.attempted >= 4


# ---------------------------------------------------------------------------------------------- wrong calls

def make(*args, **settings):
    return lambda: weft.Grouped3D(*args, **settings)


def garbage(file):
    Path(file).write_bytes(b"\x80\x02not wisdom\n" * 3)
    return cached(file)


WRONG = {
    "I": (make("4", 4, 3), TypeError, "I: is '4', allowed: an int"),
    "C": (make(4, 0, 3), ValueError, "C: is 0, allowed: 1 or more"),
    "K": (make(4, 4, (3, 3)), ValueError, "K: is (3, 3), allowed: an int, or 3 of them, of 1 or more"),
    "K-kind": (make(4, 4, "3"), TypeError, "K: is '3', allowed: an int, or 3 of them, of 1 or more"),
    "K-zero": (make(4, 4, (3, 0, 3)), ValueError, "K: is (3, 0, 3), allowed: an int, or 3 of them, of 1 or more"),
    "groups": (make(4, 6, 3, 4), ValueError, "groups: is 4, allowed: a divisor of I, 4, and of C, 6"),
    "groups-kind": (make(4, 4, 3, 2.0), TypeError, "groups: is 2.0, allowed: an int"),
    "bias": (make(4, 4, 3, bias=None), TypeError, "bias: is None, allowed: True or False"),
    "from_cache": (make(4, 4, 3, from_cache="yes"), TypeError, "from_cache: is 'yes', allowed: True or False"),
    "cache_file": (make(4, 4, 3, cache_file=3), TypeError, "cache_file: is 3, allowed: the path of a file"),
    "cache_file-empty": (make(4, 4, 3, cache_file=""), TypeError, "cache_file: is '', allowed: the path of a file"),
    "cache_file-missing": (make(4, 4, 3, from_cache=True, cache_file="/nowhere/x.pt"), FileNotFoundError,
                           "cache_file: '/nowhere/x.pt' is missing, allowed with from_cache=True: a file that from_cache=False has stored"),
    "cache_file-folder": (make(4, 4, 3, cache_file="/nowhere/x.pt"), FileNotFoundError, "cache_file: is '/nowhere/x.pt', allowed: a file in a folder that exists"),
    "config": (make(4, 4, 3, tuner_config=5), TypeError, "tuner_config: is 5, allowed: a TunerConfig, a dict with some of its fields, or None"),
    "config-key": (make(4, 4, 3, tuner_config={"threads": 100}), ValueError, "tuner_config: has 'threads', allowed: seconds, progress"),
    "config-value": (make(4, 4, 3, tuner_config={"seconds": "9"}), TypeError, "seconds: is '9', allowed: a number of seconds"),
    "seconds": (lambda: weft.TunerConfig(seconds=0), ValueError, "seconds: is 0, allowed: more than 0, and finite"),
    "progress": (lambda: weft.TunerConfig(progress=1), TypeError, "progress: is 1, allowed: True, False or None"),
    "config-field": (lambda: weft.TunerConfig(generations=3), TypeError, "unexpected keyword argument 'generations'"),
    "stride-place": (make(4, 4, 3, 1, 0, False, False, "x", None, 2), TypeError, "positional arguments"),
    "rank": (lambda: weft.Grouped3D(4, 4, 3)(torch.zeros(4, 4)), RuntimeError, "conv3d: input has 2 dimensions [4, 4], allowed: 4 (unbatched) or 5 (batched)"),
    "size": (lambda: weft.Grouped3D(4, 4, 3)(torch.zeros(1, 4, 2, 5, 5)), RuntimeError, "input: spatial axis 0 has 2 elements, too few for kernel 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_file_of_something_else(file):
    with pytest.raises(RuntimeError, match="cache_file: none of the 3 lines of .* can be read"):
        garbage(file)
