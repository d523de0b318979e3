#!/bin/sh
# The layers: base/ includes no stage; a stage includes only base/ and itself; each outside library is
# included by the files named below; pytorch_ext/ includes include/ only.
set -eu
failed=0
complain() { echo "$1"; failed=1; }

for file in $(find loader -name '*.[ch]' -o -name '*.cu' | sort); do
    folder=$(echo "$file" | cut -d/ -f2)
    for seen in $(sed -n 's/^#include "\([a-z0-9_]*\)\/.*/\1/p' "$file" | sort -u); do
        case "$seen" in
        feedmill | base | "$folder") ;;
        decode) [ "$folder" = pack ] || [ "$folder" = api ] || [ "$folder" = pipeline ] ||
            complain "$file includes decode/: only pack/, api/ and pipeline/ may" ;;
        transform) [ "$folder" = api ] || [ "$folder" = pipeline ] ||
            complain "$file includes transform/: only api/ and pipeline/ may" ;;
        augment) [ "$folder" = api ] || [ "$folder" = pipeline ] ||
            complain "$file includes augment/: only api/ and pipeline/ may" ;;
        pack) [ "$folder" = api ] || complain "$file includes pack/: only api/ may" ;;
        *) [ "$folder" = pipeline ] || complain "$file includes $seen/: only pipeline/ may" ;;
        esac
        [ "$folder" != base ] || [ "$seen" = base ] || [ "$seen" = feedmill ] ||
            complain "$file: base/ must not include $seen/"
    done
done

# only HEADER FILE...: no other file includes HEADER.
only() {
    header=$1
    shift
    for file in $(grep -rl "#include <$header>" loader include pytorch_ext || true); do
        case " $* " in *" $file "*) ;; *) complain "$file includes <$header>; only $* may" ;; esac
    done
}
only liburing.h loader/read/uring.c
only jpeglib.h loader/decode/jpeg_impl.h loader/decode/jpeg_codec.c loader/decode/jpeg_mem.c \
    loader/pack/rewrite.c
only jerror.h loader/decode/jpeg_impl.h loader/decode/jpeg_codec.c loader/decode/jpeg_mem.c \
    loader/pack/rewrite.c
only curl/curl.h loader/read/http.c
only openssl/evp.h loader/base/digest_openssl.c
only openssl/hmac.h loader/base/digest_openssl.c
only spng.h loader/decode/png.c
only webp/decode.h loader/decode/webp.c
only cuda_runtime_api.h loader/device/cuda/convert.h
only immintrin.h loader/augment/x86/target.h loader/decode/x86/target.h \
    loader/transform/x86/target.h
only arm_neon.h loader/augment/arm/target.h loader/decode/arm/target.h \
    loader/transform/arm/target.h

grep -rn '#include "\(api\|augment\|base\|cache\|decode\|device\|pack\|pipeline\|read\|ring\|source\|transform\)/' pytorch_ext benchmarks/bench_pipeline.c &&
    complain "files outside loader/ may include include/ only"
exit $failed
