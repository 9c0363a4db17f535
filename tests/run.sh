#!/usr/bin/env bash
# Run the tiers of tests and add them up. docs/testing.md says what each tier is for.
#   tests/run.sh              every tier of `make test`
#   tests/run.sh asan fuzz    those
#   WEFT_SLOW=1 tests/run.sh  everything in full: make slow
# Two tiers run side by side where there are two cores. A tier that fails stops no other. The last line is
# "N passed, N failed, N skipped" over all of them; the exit status is 1 if anything failed.
# Read from the environment: BUILD, OUT, JOBS, PYTHON (tests/venv.sh), RANDOM_PROBLEMS, SEED, FUZZ_SECONDS,
# WEFT_TEST_DEVICE (cuda: only the tests in Python that have it in their name).
set -u
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${BUILD:=build}" "${OUT:=$BUILD/out}"
BUILD=$(cd "$BUILD" && pwd)
OUT=$(cd "$OUT" && pwd)
JOBS=${JOBS:-$(nproc 2> /dev/null || echo 2)}
LOGS=$OUT/logs
SEED=${SEED:-7}
SLOTS=$((JOBS < 4 ? JOBS : 4))                                # tiers at a time
PROCESSES=$((JOBS < 8 ? JOBS / SLOTS : JOBS < 24 ? JOBS / 3 : 8)) # of pytest in a tier: three tiers are Python
# LIMIT: seconds of one program, on a machine that is busy, too: it hangs. SANITIZED: how much of cpu/isa.h asan builds.
case ${WEFT_SLOW:-0} in 0 | '') LIMIT=3000 SANITIZED=ONLY_SCALAR ALL_CHECKS=OFF ;;
    *) LIMIT=7200 SANITIZED=NO_AVX512 ALL_CHECKS=ON ;; esac
export WEFT_SLOW=${WEFT_SLOW:-0}
export WEFT_RATES=${WEFT_RATES:-nominal} # choices in tests do not depend on the clock
mkdir -p "$LOGS"

# Longest first, so that the last ones to finish are short.
ALL=(torch package python asan docs wheel tsan c verify emulated avx2 scalar fuzz valgrind install header format examples gpu)

# ---------------------------------------------------------------- helpers a tier is written with
CLOSING='^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$'
counts() { echo "$1 passed, $2 failed, $3 skipped"; }

# check NAME COMMAND...: run it and leave its closing line in the log. A command without one counts as a single test, one
# that crashes after its closing line or ran nothing counts as a failure, exit status 77 means skipped: its last line says why.
check() {
    local name=$1 log rc
    shift
    log=$(mktemp)
    echo "--- $name: $*"
    if [ "$(type -t "$1")" = function ]; then "$@"; else timeout --foreground "$LIMIT" "$@"; fi > "$log" 2>&1
    rc=$?
    cat "$log"
    if [ $rc = 77 ]; then
        echo "SKIPPED $name: $(tail -n 1 "$log")"
        counts 0 0 1
    elif grep -qE "$CLOSING" "$log"; then
        local sum
        sum=$(grep -E "$CLOSING" "$log" | awk '{p += $1; f += $3; s += $5} END {print p + s, f}')
        if [ $rc != 0 ] && [ "${sum#* }" = 0 ] || [ "$sum" = '0 0' ]; then
            echo "FAILED $name: exit status $rc, $sum"
            counts 0 1 0
        fi
    elif [ $rc = 0 ]; then
        counts 1 0 0
    else
        echo "FAILED $name: exit status $rc"
        counts 0 1 0
    fi
    rm -f "$log"
}
skip() { # NAME REASON
    echo "SKIPPED $1: $2"
    counts 0 0 1
}
has() { command -v "$1" > /dev/null; }

programs() { # DIR PATTERN [EXCEPT]: the C test programs whose names match the one and not the other
    local program found=0
    for program in "$1"/test_* "$1"/tests/test_*; do
        [ -f "$program" ] && [ -x "$program" ] || continue
        [[ ${program##*/} =~ $2 && ! ${program##*/} =~ ${3:-^$} ]] || continue
        found=1
        check "${program##*/}" "$program"
    done
    [ $found = 1 ] || { echo "FAILED no test program in $1 matches $2"; counts 0 1 0; }
}
# -O1: the kernels are unrolled by hand, and sanitized at -O2 they compile ten times longer. One source serves every
# instruction set, so the lower ones show what a sanitizer can see (cpu/isa.h).
build_with() { # DIR SANITIZERS ISAS [TARGETS...]
    local targets=("${@:4}")
    cmake -S . -B "$1" -DCMAKE_BUILD_TYPE=None "-DCMAKE_C_FLAGS=-O1 -DWEFT__SMALL_CUTS -DWEFT__$3" -DWEFT_SANITIZE="$2" -DWEFT_SANITIZE_ALL=$ALL_CHECKS -DWEFT_TORCH=OFF &&
        cmake --build "$1" -j "$JOBS" ${targets:+--target "${targets[@]}"} || { echo "FAILED build in $1"; counts 0 1 0; return 1; }
}
with_python() { WEFT_LIBRARY=$BUILD/libweft_torch.so PYTHONPATH=python${PYTHONPATH:+:$PYTHONPATH} timeout --foreground "$LIMIT" "$(cat "$BUILD/python")" "$@"; }
pytest_counts() { # pytest, its summary said the way the other tiers say it
    local log rc
    log=$(mktemp)
    with_python -m pytest -q -p no:cacheprovider "$@" | tee "$log"
    rc=${PIPESTATUS[0]}
    tail -n 1 "$log" | awk '{
        for (i = 2; i <= NF; i++) {
            word = $i; sub(/,$/, "", word)
            if (word == "passed" || word == "xfailed") p += $(i - 1)
            if (word == "failed" || word ~ /^errors?$/ || word == "xpassed") f += $(i - 1)
            if (word == "skipped") s += $(i - 1)
        }
        print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped"
    }'
    rm -f "$log"
    [ "$rc" != 5 ] || [ -z "${WEFT_TEST_DEVICE:-}" ] || { echo "no test here is for $WEFT_TEST_DEVICE"; return 77; }
    return "$rc"
}

# On a GPU a test is as long as the kernels that it is the first to compile: these files come first.
LONGEST='causal_|test_conv\.|enable_pool|cross_entropy\.|samples|batch_norm|test_bench|sparse_modules|test_peer'
longest_first() { # FILES...
    ls -S "$@" | grep -E "$LONGEST"
    ls -S "$@" | grep -vE "$LONGEST"
}
each_file() { # FILES...: in one process where there are few cores, else a process for each, the longest first
    [ "$PROCESSES" -gt 1 ] || { check pytest pytest_counts "$@"; return; }
    local file dir running=0
    dir=$(mktemp -d)
    set +m # they belong to the tier's process group
    for file in $(longest_first "$@"); do
        if [ $running -ge "$PROCESSES" ]; then
            wait -n
            running=$((running - 1))
        fi
        check "${file##*/}" pytest_counts "$file" > "$dir/${file##*/}.log" 2>&1 &
        running=$((running + 1))
    done
    wait
    cat "$dir"/*.log
    rm -r "$dir"
}

# ---------------------------------------------------------------- the tiers
tier_c() { programs "$BUILD" .; }
tier_avx2() { at_isa avx2; }
tier_scalar() { at_isa scalar; }
at_isa() { # the kernels again on a lower instruction set
    WEFT_ISA=$1 programs "$BUILD" 'kernel|sweep|propert|threads'
    WEFT_ISA=$1 check "verify on $1" "$BUILD/weft" verify --random 2000 --seed "$SEED"
}
tier_verify() { check verify "$BUILD/weft" verify --random "${RANDOM_PROBLEMS:-3000}" --seed "$SEED"; }
tier_emulated() { # the CUDA kernels on the CPU
    [ -d "$BUILD/emulator" ] || { skip emulated 'the emulator knows x86-64 alone'; return; }
    has "${CXX:-g++}" || { skip emulated "no ${CXX:-g++} on this machine"; return; }
    BUILD=$BUILD check 'the engine' tests/emulator/run "$BUILD/emulator/test_engine"
    BUILD=$BUILD check 'verify on the emulated GPU' tests/emulator/run "$BUILD/weft" verify --device cuda \
        --random "${RANDOM_PROBLEMS:-60}" --seed "$SEED"
    BUILD=$BUILD check 'the cases of tests/emulator' tests/emulator/run "$BUILD/weft" verify \
        $(sed 's/#.*//' tests/emulator/cases.txt)
}
tier_fuzz() { fuzzers "$BUILD" "${FUZZ_SECONDS:-5}"; }
fuzzers() { # DIR SECONDS
    local target
    for target in "$1"/fuzz_*; do
        [ -x "$target" ] && check "${target##*/}" "$target" --seconds "$2" --seed "$SEED"
    done
}
tier_asan() {
    build_with "$BUILD-asan" address,undefined "$SANITIZED" || return
    programs "$BUILD-asan" . cuda_compile
    check 'test_cuda_compile, the files' "$BUILD-asan/test_cuda_compile" a_ # compiling itself is NVRTC's code, not ours
    fuzzers "$BUILD-asan" 3
    check 'verify' "$BUILD-asan/weft" verify --random 300 --seed "$SEED"
}
tier_tsan() {
    build_with "$BUILD-tsan" thread ONLY_SCALAR weft test_{threads,wisdom,wisdom_file,plan} || return
    programs "$BUILD-tsan" 'thread|cache|wisdom|plan'
    check verify "$BUILD-tsan/weft" verify --random 300 --seed "$SEED"
}
tier_valgrind() {
    has valgrind || { skip valgrind 'no valgrind on this machine'; return; }
    WEFT_ISA=avx2 check valgrind valgrind -q --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite \
        "$BUILD/weft" verify --random 200 --seed "$SEED"
}
tier_install() { check install tests/install/run.sh "$BUILD"; }
tier_wheel() { check wheel pytest_counts -rs tests/install; }
tier_header() { # weft.h compiles alone, in every language it promises
    local unit=$LOGS/header
    echo '#include "weft.h"' | tee "$unit.c" > "$unit.cc"
    local strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude)
    local compiler
    for compiler in gcc clang; do
        has $compiler || { skip "$compiler" "no $compiler on this machine"; continue; }
        check "$compiler C99" $compiler -std=c99 "${strict[@]}" "$unit.c"
        check "$compiler C11" $compiler -std=c11 "${strict[@]}" "$unit.c"
    done
    for compiler in g++ clang++; do
        has $compiler || { skip "$compiler" "no $compiler on this machine"; continue; }
        check "$compiler C++17" $compiler -std=c++17 "${strict[@]}" "$unit.cc"
    done
}
tier_format() { # one formatting: make format
    local tool=$PWD/.venv/bin/clang-format
    [ -x "$tool" ] || { skip format 'no .venv/bin/clang-format (make venv)'; return; }
    git rev-parse --git-dir > /dev/null 2>&1 || { skip format 'not a git checkout'; return; }
    check clang-format all_formatted "$tool"
}
all_formatted() {
    git ls-files -z '*.c' '*.h' '*.cu' | xargs -0 "$1" --dry-run -Werror &&
        ! git ls-files -z '*.c' '*.h' '*.cu' | LC_ALL=C.UTF-8 xargs -0 grep -nE '^.{121}' /dev/null
}
tier_examples() {
    local example
    for example in "$BUILD"/example_*; do
        [ -x "$example" ] && check "${example##*/}" "$example"
    done
}
tier_docs() { check docs with_python tests/docs.py; }
# The tests in Python are three tiers of about the same length: the operators by ctypes and the spine of the binding; the functions and
# modules beside their twins; everything built on them.
BESIDE_TWINS='test_torch_|samples'
BUILT_ON='ecosystem|public|layers|convert|models|bench|demo|documents|old_systems|pconv_|sparse_mod|prune|torch7|grouped3d|memory|hostile|distributed|peer'
python_files() { # PATTERN [EXCEPT]
    find tests/python -name 'test_*.py' | sort | grep -E "$1" | grep -vE "${2:-^$}"
}
tier_python() { each_file $(python_files . "$BESIDE_TWINS|$BUILT_ON"); }
tier_torch() { each_file $(python_files "$BESIDE_TWINS"  "$BUILT_ON"); }
tier_package() { each_file $(python_files "$BUILT_ON"); }

no_gpu() { # why there is none, or nothing
    "$BUILD/weft" info | sed -nE 's/^cuda: *(absent.*)/\1/p'
}
tier_gpu() {
    local why
    why=$(no_gpu)
    [ -z "$why" ] || { skip gpu "$why"; return; }
    check gpu_smoke "$BUILD/gpu_smoke"
    check 'verify on cuda' "$BUILD/weft" verify --device cuda --random 20000 --seconds 60 --seed "$SEED"
    check 'the cases of tests/emulator' "$BUILD/weft" verify $(sed 's/#.*//' tests/emulator/cases.txt)
}

# make gpu-slow: three tiers side by side, each GPU_SECONDS long: the sanitizers over some problems, and random ones.
GPU_SECONDS=${GPU_SECONDS:-200}
tier_gpu_memcheck() { sanitize memcheck; }
tier_gpu_racecheck() { sanitize racecheck; }
sanitize() {
    local why exclude=--kernel-name-exclude
    why=$(no_gpu)
    [ -n "$why" ] || has compute-sanitizer || why='no compute-sanitizer on this machine'
    [ -z "$why" ] || { skip "$1" "$why"; return; }
    compute-sanitizer --help 2>&1 | grep -q -e "$exclude" || exclude=--kernel-regex-exclude # before CUDA 12.3
    check "$1" compute-sanitizer --tool "$1" --error-exitcode 9 "$exclude" kns=_ref \
        "$BUILD/weft" verify --device cuda --random 20000 --seconds "$GPU_SECONDS" --seed "$SEED"
}
tier_gpu_random() {
    local why
    why=$(no_gpu)
    [ -z "$why" ] || { skip gpu_random "$why"; return; }
    check 'random problems' "$BUILD/weft" verify --device cuda --random 1000000 --seconds "$GPU_SECONDS" --seed $((SEED + 1))
}

# ---------------------------------------------------------------- running them
needs_python() { [[ $1 =~ ^(python|torch|package|docs|wheel|gpu-bench)$ ]]; }

run_tier() { # NAME: its log, its counts in NAME.sum, one line on the terminal
    local name=$1 log=$LOGS/$1.log start=$SECONDS word sum
    if needs_python "$name" && [ "$(cat "$BUILD/python" 2> /dev/null)" = none ]; then
        skip "$name" 'PYTHON=none' > "$log"
    elif needs_python "$name" && [ ! -e "$BUILD/python" ]; then
        { echo "FAILED $name: no Python with torch, see $BUILD/venv.log"; counts 0 1 0; } > "$log"
    else
        "tier_$name" > "$log" 2>&1
    fi
    sum=$(grep -E "$CLOSING" "$log" | awk '{p += $1; f += $3; s += $5} END {print p + 0, f + 0, s + 0}')
    read -r passed failed skipped <<< "$sum"
    echo "$sum" > "$LOGS/$name.sum"
    word=ok
    [ "$passed" != 0 ] || word=SKIPPED
    [ "$failed" = 0 ] || word=FAILED
    printf '%-8s %-10s %4d s   %s\n' $word "$name" $((SECONDS - start)) "$(counts "$passed" "$failed" "$skipped")"
    grep -E '^(SKIPPED|skip) ' "$log" | sed -E 's/^SKIPPED \[[0-9]+\] [^ ]+ /SKIPPED /' | sort -u | cut -c1-200 | sed 's/^/         /'
    [ "$failed" = 0 ] || show_failure "$log" | sed 's/^/         | /'
}
show_failure() { # what went wrong, then the end
    echo "$1:"
    grep -E -B2 '^FAIL|^E  |runtime error:|ERROR: |WARNING: ThreadSanitizer|error:' "$1" | head -n 40
    echo ...
    tail -n 10 "$1"
}
prepare() { # the build and the Python environment, side by side; no tier makes sense without the build
    tests/venv.sh & # leaves $BUILD/python, or nothing: then the tiers that need it fail, with the reason
    make --no-print-directory all BUILD="$BUILD" JOBS="$JOBS" > "$LOGS/build.log" 2>&1
    local rc=$?
    wait
    if [ $rc != 0 ]; then
        tail -n 40 "$LOGS/build.log"
        echo 'FAILED   the build'
        counts 0 1 0
        exit 1
    fi
    [ ! -s "$BUILD/nvrtc" ] || export WEFT_NVRTC="${WEFT_NVRTC:-$(cat "$BUILD/nvrtc")}"
    if grep -q 'warning:' "$LOGS/build.log"; then
        grep -A3 'warning:' "$LOGS/build.log" | head -n 40
        echo "FAILED   build      the compiler warns, see $LOGS/build.log"
        echo 0 1 0 > "$LOGS/build.sum"
    else
        printf 'ok       build      %4d s   %s\n' $SECONDS "$(counts 1 0 0)"
        echo 1 0 0 > "$LOGS/build.sum"
    fi
}

main() {
    local name
    for name in "$@"; do
        [ "$(type -t "tier_$name")" = function ] || { echo "tests/run.sh: no tier '$name'; there are: ${ALL[*]}" >&2; exit 2; }
    done
    [ $# != 0 ] || set -- "${ALL[@]}"
    set -m # every tier is a process group of its own, so that ending this script ends all of it
    trap 'for job in $(jobs -p); do kill -- -"$job"; done 2> /dev/null; exit 130' INT TERM
    rm -f "$LOGS"/*.sum
    prepare
    local running=0
    for name in "$@"; do
        if [ $running -ge "$SLOTS" ]; then
            wait -n
            running=$((running - 1))
        fi
        run_tier "$name" &
        running=$((running + 1))
    done
    wait
    local sum passed failed skipped
    sum=$(cat "$LOGS"/*.sum | awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}')
    read -r passed failed skipped <<< "$sum"
    echo "logs in $LOGS, $SECONDS s in all"
    counts "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}
main "$@"
