#!/bin/sh
# The shared library exports the functions of include/feedmill's headers, and nothing else.
# usage: check_exports.sh LIBRARY
set -eu
exported=$(nm -D --defined-only "$1" | awk '{ sub(/@.*/, "", $3); print $3 }' |
    grep -v -e '^_init$' -e '^_fini$' -e '^__bss_start$' -e '^_edata$' -e '^_end$' -e '^__asan' -e '^__odr_asan' |
    sort -u)
declared=$(cat include/feedmill/*.h | tr '\n' ' ' | sed 's/FM_API/\nFM_API/g' |
    sed -n 's/^FM_API[^(]*[ *]\(fm_[a-z_]*\)(.*/\1/p' | sort -u)
[ "$exported" = "$declared" ] && exit 0
echo "exported, not declared or the reverse:"
echo "$exported" >/tmp/fm_exported.$$
echo "$declared" | diff /tmp/fm_exported.$$ - || true
rm -f /tmp/fm_exported.$$
exit 1
