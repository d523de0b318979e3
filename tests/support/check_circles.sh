#!/bin/sh
# check_circles.sh OBJECT_FILE...: no file of the library needs one that needs it in turn, however far
# around. Which file needs which is told by the symbols of their object files.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for file in "$@"; do nm -g --defined-only "$file" | awk -v f="$file" '{print $3, f}'; done |
    sort -u >"$folder/defined"
for file in "$@"; do nm -g --undefined-only "$file" | awk -v f="$file" '{print $2, f}'; done |
    sort -u >"$folder/needed"
join "$folder/needed" "$folder/defined" | awk '$2 != $3 {print $2, $3}' | sort -u >"$folder/edges"
test -s "$folder/edges" || { echo "no file needs another: are these object files?"; exit 1; }
# tsort prints the files of each circle to its standard error, and fails.
tsort "$folder/edges" >/dev/null
