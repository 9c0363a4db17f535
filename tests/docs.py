"""The documents, tried as a reader would: snippets run, problem texts parse, and the how-to pages build what they say.

What a fenced block does is written on its first line:
    ```c            a whole program (it has a main): compiled against the build and run
    ```python       tests/python/test_documents.py runs these
    ```sh           lines that call build/weft are run; on a how-to page every line is, in a scratch copy of the tree
    ```c file=PATH  a file of a how-to page, written to the scratch copy
    ```diff file=PATH  an edit there: the lines without + must stand in the file exactly once, one after another;
                    with nothing but + lines, they go to its end
"""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / os.environ.get("BUILD", "build")
HOW_TO = ["docs/adding-a-kernel.md", "docs/adding-an-operator.md"]
BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```$", re.M | re.S)
PROBLEM = re.compile(r"(?<![\w/])[a-z_]+(?:[123]d)?:(?:fwd|bwd\w*):[^\s`\"'|)]+")
# The example kernel of the first page, and the same without the mask of its tail: its verify line must see the difference.
MASKED = ("src/cpu/conv/f32_dwconv1x1_nchw.c", "vf_store_in(tail, dst + x, vf_mul(vf_load_in(tail, src + x), factor))",
          "(void)tail, vf_store(dst + x, vf_mul(vf_load(src + x), factor))")

passed = failed = 0


def check(what, good, detail=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    if not good:
        print(f"FAILED {what}\n{detail}")
    return good


def run(what, command, quiet=(), **options):
    """Run a command; compiler warnings about the files of `quiet` count as failure."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3000, **options)
    clean = done.returncode == 0 and not any("warning:" in line and name in line for name in quiet for line in done.stdout.splitlines())
    return check(what, clean, f"$ {command}\n{done.stdout}")


def blocks(page):
    for match in BLOCK.finditer((ROOT / page).read_text()):
        language, file, body = match.groups()
        line = match.string.count("\n", 0, match.start()) + 1
        yield f"{page}:{line}", language, file, body


def run_program(where, source, scratch):
    path = scratch / "snippet.c"
    path.write_text(source)
    compiler = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT}/include"]
    libraries = [f"{BUILD}/libweft.a", "-lpthread", "-ldl", "-lm"]
    if run(f"{where} compiles", [*compiler, str(path), "-o", str(scratch / "snippet"), *libraries]):
        run(f"{where} runs", [str(scratch / "snippet")])
    if shutil.which("g++"):
        strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{ROOT}/include"]
        run(f"{where} is C++17 too", ["g++", *strict, "-x", "c++", "-fsyntax-only", str(path)])


def run_snippets(page, scratch):
    for where, language, file, body in blocks(page):
        if language == "c" and "int main" in body:
            run_program(where, body, scratch)
        elif language == "sh":
            for line in body.splitlines():
                if line.startswith("build/weft "):
                    run(f"{where} {line}", line.replace("build/weft", str(BUILD / "weft"), 1), shell=True, cwd=scratch)


def parse_problems(page):
    """Parse and format every problem text of a page, and parse what was formatted."""
    library = ctypes.CDLL(str(BUILD / "libweft.so"))
    library.weft_last_error.restype = ctypes.c_char_p
    problem, text = ctypes.create_string_buffer(1 << 16), ctypes.create_string_buffer(4096)
    shown_refused = re.compile(r"^\$ weft .*\nweft .*\n(  .*\n)*", re.M)
    size = ctypes.c_size_t.from_buffer(problem)  # the first member of weft_problem
    size.value = len(problem)
    for found in PROBLEM.findall(shown_refused.sub("", (ROOT / page).read_text())):
        good = library.weft_problem_parse(problem, found.encode()) == 0
        good = good and library.weft_problem_format(problem, text, ctypes.c_size_t(4096), None) == 0
        good = good and library.weft_problem_parse(problem, text) == 0
        check(f"{page}: {found}", good, library.weft_last_error().decode())


def edit(where, path, diff):
    """Apply an edit given as lines that begin with ' ', '-' or '+'."""
    lines = [(line[:1] or " ", line[1:]) for line in diff.splitlines()]
    old = "\n".join(line for mark, line in lines if mark != "+")
    new = "\n".join(line for mark, line in lines if mark != "-")
    text = path.read_text()
    if not old:
        path.write_text(text + new + "\n")
    elif check(f"{where}: its context stands once in {path.name}", text.count(old) == 1, old):
        path.write_text(text.replace(old, new))


def follow_how_to(scratch):
    """Do what both pages say, in one copy of the tree, then run their commands there."""
    tree = scratch / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "build-*", "wt", "__pycache__", ".pytest_cache"))
    commands, files = [], []
    for page in HOW_TO:
        for where, language, file, body in blocks(page):
            if language == "diff" and file:
                edit(where, tree / file, body)
            elif file:
                check(f"{where}: {file} is new", not (tree / file).exists())
                (tree / file).parent.mkdir(parents=True, exist_ok=True)
                (tree / file).write_text(body)
                files.append(file)
            elif language == "sh":
                commands.append((where, body))
    environment = {**os.environ, "CMAKE_FLAGS": "-DWEFT_TORCH=OFF -DCMAKE_BUILD_TYPE=None '-DCMAKE_C_FLAGS=-O1 -DWEFT__ONLY_SCALAR'", "BUILD": "build"}
    for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES"):
        environment.pop(name, None)
    for where, body in commands:
        run(f"{where} works", ["bash", "-e", "-o", "pipefail", "-c", body], quiet=files, cwd=tree, env=environment)
    example, masked = tree / MASKED[0], MASKED[1]
    verify = next(line for _, body in commands for line in body.splitlines() if line.startswith("build/weft verify"))
    check(f"{MASKED[0]}: has the mask of its tail", masked in example.read_text())
    example.write_text(example.read_text().replace(masked, MASKED[2]))
    broken = subprocess.run(["bash", "-c", f"make >&2 && {verify}"], cwd=tree, env=environment, capture_output=True, text=True)
    check(f"{verify}: fails without the mask", broken.returncode != 0 and "past its end" in broken.stdout + broken.stderr, broken.stdout[-2000:])


def main():
    pages = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        for page in pages:
            if page not in HOW_TO:
                run_snippets(page, scratch)
                parse_problems(page)
        follow_how_to(scratch)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
