#!/bin/sh
# Each header compiles alone, as C17; public ones as C++17 too; each .c by one plain compiler line.
# usage: check_headers.sh CC
set -eu
cc=${1:-cc}
machine=$("$cc" -dumpmachine)
failed=0
for header in $(find include loader -name '*.h' | sort); do
    cuda=
    case "$header" in */cuda/*) cuda=-Itests/support/stub_cuda ;; esac
    case "$header:$machine" in
    */x86/*:x86_64* | */arm/*:aarch64*) ;;
    */x86/* | */arm/*) continue ;;
    esac
    echo "#include \"$header\"" |
        "$cc" -std=c17 -Wall -Wextra -Werror -D_GNU_SOURCE -Iinclude -Iloader $cuda -fsyntax-only \
            -x c - || { echo "not self-contained as C17: $header"; failed=1; }
done
if command -v c++ >/dev/null; then
    for header in $(find include -name '*.h' | sort); do
        echo "#include \"$header\"" |
            c++ -std=c++17 -Wall -Wextra -Werror -Iinclude -fsyntax-only -x c++ - ||
            { echo "not self-contained as C++17: $header"; failed=1; }
    done
fi
for source in $(find loader -name '*.c' ! -name uring.c ! -name http.c ! -path '*/cuda/*' | sort); do
    "$cc" -std=c17 -DFM_HAVE_URING=0 -Iinclude -Iloader -fsyntax-only "$source" ||
        { echo "needs more than a plain compiler line: $source"; failed=1; }
done
exit $failed
