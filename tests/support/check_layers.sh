#!/bin/sh
# The layers: base sees no stage, stages see only base and themselves, the outside library of each
# kind is included by its one file, and pytorch_ext sees include/ only.
set -eu
failed=0
complain() { echo "$1"; failed=1; }

for file in $(find loader -name '*.[ch]' -o -name '*.cu' | sort); do
    room=$(echo "$file" | cut -d/ -f2)
    for seen in $(sed -n 's/^#include "\([a-z0-9_]*\)\/.*/\1/p' "$file" | sort -u); do
        case "$seen" in
        feedmill | base | "$room") ;;
        decode) [ "$room" = pack ] || [ "$room" = pipeline ] ||
            complain "$file includes decode/: only pack/ and pipeline/ may" ;;
        *) [ "$room" = pipeline ] || complain "$file includes $seen/: only pipeline/ may" ;;
        esac
        [ "$room" != base ] || [ "$seen" = base ] || [ "$seen" = feedmill ] ||
            complain "$file: base/ must not see $seen/"
    done
done

# only HEADER FILE...: nobody else includes HEADER.
only() {
    header=$1
    shift
    for file in $(grep -rl "#include <$header>" loader include pytorch_ext || true); do
        case " $* " in *" $file "*) ;; *) complain "$file includes <$header>; only $* may" ;; esac
    done
}
only liburing.h loader/read/uring.c
only jpeglib.h loader/decode/jpeg.c loader/decode/jpeg_codec.c loader/decode/jpeg_mem.c \
    loader/pack/rewrite.c
only jerror.h loader/decode/jpeg.c loader/decode/jpeg_codec.c loader/decode/jpeg_mem.c \
    loader/pack/rewrite.c
only spng.h loader/decode/png.c
only webp/decode.h loader/decode/webp.c
only cuda_runtime_api.h loader/device/cuda/convert.h
only immintrin.h loader/transform/x86/target.h

grep -rn '#include "\(base\|read\|decode\|transform\|ring\|pipeline\|source\)/' pytorch_ext benchmarks/bench_pipeline.c &&
    complain "outside loader/ only include/ may be seen"
exit $failed
