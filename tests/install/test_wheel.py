"""`pip install .` as a stranger would: build the wheel where there is no PyTorch, look into it, and use it away from the tree.

All of it happens in one scratch environment. First it has only the build backend; then the PyTorch of this Python is made visible
to it through a .pth file, so that nothing large is downloaded. Where the backend cannot be had, everything here is skipped.
"""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'#define WEFT_VERSION "(.+)"', (ROOT / "include" / "weft.h").read_text()).group(1)
REQUIRES = re.search(r'^requires = \["(.+)"\]', (ROOT / "pyproject.toml").read_text(), re.M).group(1)
NO_CACHE = ["--no-cache-dir", "--disable-pip-version-check"]
# A fifth of the time: the other tiers test the optimised code and the kernels of every instruction set.
QUICK = ["--config-settings", "cmake.define.CMAKE_C_FLAGS_RELEASE=-O0", "--config-settings", "cmake.define.CMAKE_C_FLAGS=-DWEFT__ONLY_SCALAR"]
# What could lead a command back to the tree, or change how it builds.
TREE = ("PYTHONPATH", "WEFT_LIBRARY", "WEFT_C_LIBRARY", "BUILD", "CMAKE_ARGS", "CFLAGS", "LDFLAGS", "MAKEFLAGS", "LD_LIBRARY_PATH")


@dataclass
class Scratch:
    """A virtual environment, and a folder away from the tree to run its commands in."""
    root: Path

    @property
    def python(self) -> str:
        return str(self.root / "venv" / "bin" / "python")

    @property
    def package(self) -> Path:
        return next((self.root / "venv" / "lib").glob("python*/site-packages")) / "weft"

    def run(self, *command: object, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name not in TREE}
        done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900,
                              cwd=cwd or self.root, env=environment)
        assert not check or done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
        return done

    def pip(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-m", "pip", *arguments, *NO_CACHE, check=check)

    def wheel(self, source: Path, to: str) -> Path:
        self.pip("wheel", source, "--no-deps", "--no-build-isolation", "--no-index", *QUICK, "-w", self.root / to)
        [path] = (self.root / to).iterdir()
        return path

    def compile_and_run(self, source: Path, flags: str) -> tuple[str, str]:
        """What the program prints, and where the loader found its libraries."""
        program = self.root / source.stem
        self.run(os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o", program, *shlex.split(flags))
        return self.run(program).stdout, self.run("ldd", program).stdout


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def text(wheel: Path, name: str) -> str:
    return zipfile.ZipFile(wheel).read(name).decode()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Scratch:
    made = Scratch(tmp_path_factory.mktemp("wheel"))
    for command in ([sys.executable, "-m", "venv", made.root / "venv"],
                    [made.python, "-m", "pip", "install", "--retries", "1", REQUIRES, *NO_CACHE]):
        done = made.run(*command, check=False)
        if done.returncode:
            pytest.skip(f"no wheel is built: {REQUIRES} cannot be had: {(done.stdout.strip().splitlines() or ['no output'])[-1]}")
    return made


@pytest.fixture(scope="module")
def archive(scratch: Scratch) -> Path:
    """The source distribution."""
    to = scratch.root / "source"
    scratch.run(scratch.python, "-c", f"from scikit_build_core.build import build_sdist; build_sdist({str(to)!r})", cwd=ROOT)
    [made] = to.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(scratch: Scratch, archive: Path) -> Path:
    """Built from the source distribution: what that lacks, the wheel lacks."""
    assert scratch.run(scratch.python, "-c", "import torch", check=False).returncode, "PyTorch is visible while the wheel is built"
    return scratch.wheel(archive, "built")


@pytest.fixture(scope="module")
def installed(scratch: Scratch, wheel: Path) -> Scratch:
    sites = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    (scratch.package.parent / "torch_of_the_tests.pth").write_text("\n".join(sites) + "\n")
    scratch.pip("install", "--no-index", "--no-deps", wheel)
    return scratch


def test_the_tag_and_the_metadata(wheel: Path) -> None:
    assert re.fullmatch(rf"weft-{re.escape(VERSION)}-py3-none-(many)?linux\w+\.whl", wheel.name)
    tags = Parser().parsestr(text(wheel, f"weft-{VERSION}.dist-info/WHEEL"))
    assert [f"weft-{VERSION}-{t}.whl" for t in tags.get_all("Tag")] == [wheel.name] and tags["Root-Is-Purelib"] == "false"
    said = Parser().parsestr(text(wheel, f"weft-{VERSION}.dist-info/METADATA"))
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("weft", VERSION, "BSD-3-Clause")
    assert (said["Requires-Python"], said.get_all("Requires-Dist")) == (">=3.10", ["torch>=2.10"])
    assert said.get_payload().strip() == (ROOT / "README.md").read_text().strip()


def test_the_files(wheel: Path) -> None:
    """Every module of the tree, what C programs need, and nothing else."""
    tree = {f"weft/{path.relative_to(ROOT / 'python' / 'weft')}" for path in (ROOT / "python" / "weft").rglob("*.py")}
    for_c = {f"weft/{name}" for name in ("include/weft.h", "lib/libweft.so", "lib/libweft.so.0.1", "lib/libweft.a", "lib/pkgconfig/weft.pc")}
    cmake = {f"weft/lib/cmake/weft/weft{part}.cmake" for part in ("Config", "ConfigVersion", "Targets", "Targets-release")}
    about = {f"weft-{VERSION}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    expected = {*tree, "weft/py.typed", "weft/libweft_torch.so", *for_c, *cmake, *about, f"weft-{VERSION}.data/scripts/weft"}
    assert names(wheel) == expected
    assert text(wheel, "weft/include/weft.h") == (ROOT / "include" / "weft.h").read_text()
    assert zipfile.ZipFile(wheel).getinfo("weft/lib/libweft.so").file_size < 100, "a second copy of the library"


def test_a_convolution_away_from_the_tree(installed: Scratch) -> None:
    done = installed.run(installed.python, "-W", "ignore", "-c", """
import torch, weft
x, w = torch.randn(2, 8, 9, 10, dtype=torch.float64, requires_grad=True), torch.randn(8, 1, 3, 3, dtype=torch.float64)
y, z = weft.functional.conv2d(x, w, padding=1, groups=8), torch.nn.functional.conv2d(x, w, padding=1, groups=8)
torch.testing.assert_close(y, z)
torch.testing.assert_close(*(torch.autograd.grad(r.square().sum(), x)[0] for r in (y, z)))
print(weft.__version__, weft.__file__, weft._core.library.path, sep="\\n")""")
    assert done.stdout.split() == [VERSION, str(installed.package / "__init__.py"), str(installed.package / "libweft_torch.so")]


def test_the_python_of_the_readme(installed: Scratch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert blocks
    for block in blocks:
        installed.run(installed.python, "-W", "ignore", "-c", block)


def test_the_command(installed: Scratch) -> None:
    assert VERSION in installed.run(Path(installed.python).with_name("weft"), "--version").stdout


def test_a_c_program_from_the_flags(installed: Scratch) -> None:
    flags = installed.run(installed.python, "-W", "ignore", "-m", "weft", "--cflags", "--libs").stdout
    printed, found = installed.compile_and_run(next((ROOT / "examples").glob("00*.c")), flags)
    assert printed and f"libweft.so.0.1 => {installed.package}/lib/libweft.so.0.1 " in found


def test_a_c_program_from_the_flags_in_the_tree(installed: Scratch) -> None:
    """With python/ on the path, the flags name the header of the tree and the library of the build."""
    library = Path(os.environ.get("WEFT_LIBRARY", ROOT / "build" / "libweft_torch.so"))
    if not (library.parent / "libweft.so").exists():
        pytest.skip(f"{library.parent} has no build")
    in_tree = {"PYTHONPATH": ROOT / "python", "WEFT_LIBRARY": library}
    done = installed.run("env", *(f"{k}={v}" for k, v in in_tree.items()), sys.executable, "-W", "ignore", "-m", "weft", "--cflags", "--libs")
    assert f"-I{ROOT}/include " in done.stdout
    printed, found = installed.compile_and_run(next((ROOT / "examples").glob("00*.c")), done.stdout)
    assert printed and re.search(rf"libweft\.so\.\d+\.\d+ => {re.escape(str(library.parent))}/", found)


def test_a_cmake_project(installed: Scratch) -> None:
    build = installed.root / "by_cmake"
    installed.run("cmake", "-S", ROOT / "tests" / "install", "-B", build, f"-DCMAKE_PREFIX_PATH={installed.package}")
    installed.run("cmake", "--build", build)
    for program in ("sections_weft_c", "sections_weft_cc", "sections_weft_static_c", "sections_weft_static_cc"):
        installed.run(build / program)


def test_pkg_config(installed: Scratch) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config on this machine")
    path = f"PKG_CONFIG_PATH={installed.package}/lib/pkgconfig"
    flags = installed.run("env", path, "pkg-config", "--cflags", "--libs", "weft").stdout
    installed.compile_and_run(ROOT / "tests" / "install" / "sections.c", flags)


def test_importing_brings_little(installed: Scratch) -> None:
    """Beside its own modules a few small ones: what is heavy (torch._dynamo, torch.testing, numpy) waits until it is used. bench/overheads.py has
    the time."""
    program = "import sys, torch; before = set(sys.modules); import weft; print(*sorted(set(sys.modules) - before))"
    brought = installed.run(installed.python, "-W", "ignore", "-c", program).stdout.split()
    small = {"torch.nn.utils.prune", "torch.utils.flop_counter", "torch.utils.module_tracker"}
    others = {name.partition(".")[0].lstrip("_") for name in brought if name.split(".")[0] != "weft" and name not in small}
    assert "weft.functional" in brought and others <= {"decimal", "fractions", "numbers", "statistics", "pydecimal"}, sorted(others)


def test_the_name_of_the_source_distribution(archive: Path) -> None:
    assert archive.name == f"weft-{VERSION}.tar.gz"


@pytest.mark.skipif(os.environ.get("WEFT_SLOW", "0") in ("", "0"), reason="make slow: builds the library once more")
def test_the_tree_builds_the_same_wheel(scratch: Scratch, wheel: Path) -> None:
    assert names(scratch.wheel(ROOT, "from_the_tree")) == names(wheel)
