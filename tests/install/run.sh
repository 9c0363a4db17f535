#!/usr/bin/env bash
# Install into a scratch prefix, move it, and use it as somebody else would, in C11 and in C++17: pkg-config, find_package and
# add_subdirectory, shared and static; and from the tree.
# Then look at what the installed library shows to the linker. usage: run.sh BUILD_DIR
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CC=${CC:-cc}
libdir=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:.*=//p' "$build/CMakeCache.txt")
series=$(sed -n 's/^#define WEFT_VERSION "\([0-9]*\.[0-9]*\)\..*/\1/p' "$here/../../include/weft.h") # 0.x breaks with the minor
strict=(-Wall -Wextra -Wpedantic -Werror)
passed=0 failed=0 skipped=0

check() { # what, command...
    local what=$1
    shift
    if "$@" > "$scratch/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $what"
        sed 's/^/    /' "$scratch/log"
    fi
}
skip() { skipped=$((skipped + 1)); echo "SKIPPED $*"; }

install_and_move() {
    DESTDIR=$scratch/stage cmake --install "$build" --prefix /opt/weft && mv "$scratch/stage/opt/weft" "$prefix"
}
is_complete() {
    local file missing=0
    for file in include/weft.h bin/weft "$libdir"/{libweft.so,libweft.so.$series,libweft.a,pkgconfig/weft.pc,cmake/weft/weftConfig.cmake}; do
        [ -e "$prefix/$file" ] || { echo "missing: $file"; missing=1; }
    done
    return $missing
}
only_public() { # every symbol other programs can bind to is weft_*, never weft__*
    ! nm -D --defined-only "$lib" | awk '{print $NF}' | grep -vE '^weft_[a-z0-9][a-z0-9_]*$'
}
every_call() { # every function the header declares is there
    local name missing=0
    for name in $(sed -nE 's/^WEFT_API [^(]*[ *](weft_[a-z0-9_]+)\(.*/\1/p' "$prefix/include/weft.h"); do
        nm -D --defined-only "$lib" | grep -qE " T $name\$" || { echo "not exported: $name"; missing=1; }
    done
    return $missing
}
own_prefix() { # a static library must not take names from the program it joins
    ! nm -g --defined-only "$prefix/$libdir/libweft.a" | awk 'NF == 3 {print $3}' | grep -v '^weft_'
}
soname() { readelf -d "$lib" | grep -F "[libweft.so.$series]"; }
needs_only_libc() { # no dependency beyond libc, libm, libdl and pthread
    ! readelf -d "$lib" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | grep -vE '^(libc|libm|libdl|libpthread|ld-linux[^.]*)\.so'
}
compile() { # c|c++ OUT FLAGS...: sections.c in that language, and run it
    local out=$2
    if [ "$1" = c ]; then
        shift 2
        $CC -std=c11 "${strict[@]}" "$here/sections.c" -o "$out" "$@" && "$out"
    else
        shift 2
        ${CXX:-c++} -std=c++17 "${strict[@]}" -x c++ "$here/sections.c" -x none -o "$out" "$@" && "$out"
    fi
}
by_pkg_config() { # shared|static c|c++
    export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
    local flags
    if [ "$1" = static ]; then
        flags="$(pkg-config --cflags weft) $prefix/$libdir/libweft.a $(pkg-config --static --libs weft | sed 's/-lweft//')"
    else
        flags="$(pkg-config --cflags --libs weft)"
    fi
    # shellcheck disable=SC2086  # flags are words
    compile "$2" "$scratch/pc_$1_$2" $flags
}
by_cmake() {
    cmake -S "$here" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$scratch/consumer"
}
by_subdirectory() { # the names weft::weft and weft::weft_static are there, and what they say compiles
    cmake -S "$here" -B "$scratch/subdirectory" -DWEFT_SOURCES="$here/../.." && cmake --build "$scratch/subdirectory"
}
from_tree() { # c|c++
    compile "$1" "$scratch/tree_$1" -I"$here/../../include" "$build/libweft.a" -lpthread -ldl -lm
}

prefix=$scratch/moved
lib=$prefix/$libdir/libweft.so
check 'install with DESTDIR' install_and_move
check 'the installed files' is_complete
check 'only weft_ is exported' only_public
check 'every declared call is exported' every_call
check 'the static library defines only weft_ names' own_prefix
check "the soname is libweft.so.$series" soname
check 'needs only libc, libm, libdl, pthread' needs_only_libc
check 'the installed command runs' "$prefix/bin/weft" --version
if command -v pkg-config > /dev/null; then
    for language in c c++; do
        check "pkg-config, shared, $language" by_pkg_config shared $language
        check "pkg-config, static, $language" by_pkg_config static $language
    done
else
    skip 'pkg-config consumers: no pkg-config on this machine'
fi
check 'find_package(weft)' by_cmake
for program in sections_weft{,_static}_c{,c}; do check "find_package, $program" "$scratch/consumer/$program"; done
check 'add_subdirectory(weft)' by_subdirectory
for language in c c++; do check "from the tree, $language" from_tree $language; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
