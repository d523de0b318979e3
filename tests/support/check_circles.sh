#!/bin/sh
# check_circles.sh OBJECT_FILE...: no file of the library needs one that needs it in turn, however far
# around. Which file needs which is told by the symbols of their object files.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Lines of nm -A, such as "loader/a.c.o:0000000000000010 T fm_a", as "fm_a loader/a.c.o".
list_symbols() { nm -A -g "$@" | awk '{sub(/:.*/, "", $1); print $NF, $1}' | sort -u; }
list_symbols --defined-only "$@" >"$folder/defined"
list_symbols --undefined-only "$@" >"$folder/needed"
join "$folder/needed" "$folder/defined" | awk '$2 != $3 {print $2, $3}' | sort -u >"$folder/edges"
test -s "$folder/edges" || { echo "no file needs another: are these object files?"; exit 1; }
# tsort prints the files of each circle to its standard error, and fails.
tsort "$folder/edges" >/dev/null
