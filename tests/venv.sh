#!/usr/bin/env bash
# Find or make the Python that runs the client and its tests. Its path goes into $BUILD/python, and that of the NVRTC beside its
# torch into $BUILD/nvrtc (empty if there is none), for programs that do not go through Python.
#   PYTHON=          .venv in the tree, made on first use; if pip cannot, the system's python3 where it has torch
#   PYTHON=<path>    that one
#   PYTHON=none      none: "none" is written, and the tiers that need Python are left out
set -u
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build}
log=$build/venv.log
mkdir -p "$build"
find_nvrtc='import glob, sys
print(next((p for d in sys.path for p in sorted(glob.glob(d + "/nvidia/*/lib/libnvrtc.so.*"))), ""))'
use() {
    echo "$1" > "$build/python"
    "$1" -c "$find_nvrtc" > "$build/nvrtc" 2> /dev/null
    exit 0
}
give_up() { echo "venv: $*" >&2; rm -f "$build/python"; exit 1; }

[ -z "${PYTHON:-}" ] || use "$PYTHON"

# Exactly this spelling: it takes the CPU build where pip's own settings (find-links, an index) offer one. Others pull in
# gigabytes of CUDA, and so does this one where no CPU build is offered: it works, it only takes longer.
packages=(torch==2.13.0 pytest clang-format==18.1.8)
nvrtc='nvidia-cuda-nvrtc==13.0.*'
venv=$PWD/.venv/bin/python
made_with=$(cat .venv/made-with 2> /dev/null)
pip_install() { "$venv" -m pip install --no-compile --disable-pip-version-check --retries 2 "$@" >> "$log" 2>&1; }
# numpy for tests/python/samples.py alone, out of the way of the other tests: they show that weft does without it.
add_samples() {
    [ -d .venv/samples/numpy ] || pip_install --only-binary :all: --target .venv/samples numpy ||
        echo "venv: numpy could not be installed: the samples of PyTorch's own tests will not be run"
}
[ "$made_with" != "${packages[*]} $nvrtc" ] || { add_samples; use "$venv"; }

python=$(command -v python3) || give_up "no python3 on the PATH; Python 3.10 or later is needed"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    give_up "$("$python" --version) is too old; Python 3.10 or later is needed"

echo "venv: setting up .venv with ${packages[*]} (log: $log)"
if "$python" -m venv .venv > "$log" 2>&1 && pip_install "${packages[@]}"; then
    if pip_install "$nvrtc"; then
        echo "${packages[*]} $nvrtc" > .venv/made-with
    else
        echo "venv: $nvrtc could not be installed: the tests will not compile the CUDA sources"
    fi
    add_samples
    use "$venv"
fi
if "$python" -c 'import torch, pytest' 2>> "$log"; then
    echo "venv: pip could not install into .venv; taking $python, which has torch"
    use "$python"
fi
tail -n 5 "$log" >&2
give_up "pip could not install ${packages[*]} and $python has no torch; PYTHON=<path> names another, PYTHON=none does without"
