#!/usr/bin/env bash
# Install into a scratch prefix, move it, and use it as a stranger would: pkg-config and CMake, shared and static.
# Then look at what the installed library shows to the linker. usage: run.sh BUILD_DIR
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
CC=${CC:-cc}
libdir=$(sed -n 's/^CMAKE_INSTALL_LIBDIR:.*=//p' "$build/CMakeCache.txt")
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
    for file in include/weft.h bin/weft "$libdir"/{libweft.so,libweft.so.0,libweft.a,pkgconfig/weft.pc,cmake/weft/weftConfig.cmake}; do
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
soname() { readelf -d "$lib" | grep -F '[libweft.so.0]'; }
needs_only_libc() { # no dependency beyond libc, libm, libdl and pthread
    ! readelf -d "$lib" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | grep -vE '^(libc|libm|libdl|libpthread|ld-linux[^.]*)\.so'
}
by_pkg_config() { # shared|static
    export PKG_CONFIG_PATH=$prefix/$libdir/pkgconfig
    local flags
    if [ "$1" = static ]; then
        flags="$(pkg-config --cflags weft) $prefix/$libdir/libweft.a $(pkg-config --static --libs weft | sed 's/-lweft//')"
    else
        flags="$(pkg-config --cflags --libs weft) -Wl,-rpath,$prefix/$libdir"
    fi
    # shellcheck disable=SC2086  # flags are words
    $CC -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/consumer.c" -o "$scratch/pc_$1" $flags && "$scratch/pc_$1"
}
by_cmake() {
    cmake -S "$here" -B "$scratch/consumer" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$scratch/consumer"
}

prefix=$scratch/moved
lib=$prefix/$libdir/libweft.so
check 'install with DESTDIR' install_and_move
check 'the installed files' is_complete
check 'only weft_ is exported' only_public
check 'every declared call is exported' every_call
check 'the static library defines only weft_ names' own_prefix
check 'the soname is libweft.so.0' soname
check 'needs only libc, libm, libdl, pthread' needs_only_libc
check 'the installed command runs' "$prefix/bin/weft" --version
if command -v pkg-config > /dev/null; then
    check 'pkg-config, shared' by_pkg_config shared
    check 'pkg-config, static' by_pkg_config static
else
    skip 'pkg-config consumers: no pkg-config on this machine'
fi
check 'find_package(weft)' by_cmake
check 'find_package, shared' "$scratch/consumer/consumer_shared"
check 'find_package, static' "$scratch/consumer/consumer_static"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
