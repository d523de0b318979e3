#!/bin/bash
# Packs a dataset on many nodes of a Slurm cluster: each task of a job array writes one part of the
# pack, and a last job joins the parts.
#
#     bash pack_slurm.sh SRC OUT           # submits both jobs
#
# SRC and OUT must be on a file system that all nodes see under the same paths, and `feedmill` must
# be on the PATH there. Change the numbers below as you need them; N_PARTS must stay as it is until
# the pack is finished. To pack again what failed, submit those tasks alone, and then the joining
# job:
#
#     sbatch --array=3,17 pack_slurm.sh SRC OUT
#     sbatch --wrap 'feedmill pack --join OUT'
#
#SBATCH --job-name=feedmill-pack
#SBATCH --array=0-63
#SBATCH --cpus-per-task=16
#SBATCH --mem=8G
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=feedmill-pack-%A_%a.log
set -euo pipefail

N_PARTS=64 # as many as --array above has numbers, which begin with 0

if [ $# -ne 2 ]; then
    echo "usage: bash pack_slurm.sh SRC OUT" >&2
    exit 2
fi
src=$1 out=$2

if [ -z "${SLURM_ARRAY_TASK_ID:-}" ]; then
    packing=$(sbatch --parsable "$0" "$src" "$out")
    # Starts when all tasks of the array have ended well.
    sbatch --dependency="afterok:$packing" --kill-on-invalid-dep=yes --job-name=feedmill-join \
        --output=feedmill-join-%j.log --wrap "feedmill pack --join $(printf %q "$out")"
    exit
fi

# Shards that are complete are kept, so a task that is requeued goes on where it was.
feedmill pack "$src" "$out" --part "$SLURM_ARRAY_TASK_ID/$N_PARTS" \
    --workers "${SLURM_CPUS_PER_TASK:-1}"
