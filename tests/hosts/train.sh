#!/usr/bin/env bash
# train.sh HOSTSxRANKS TRAINER COMPARE_WEIGHTS FOLDER: the trainer's network, trained on emulated hosts, gets the weights
# that the same number of ranks gets on one host, to the bit. On one host TUTTI_RANKS_PER_HOST lets the ranks add host by
# host, in the same order. The layout 2x1 needs no such help: two ranks add in one order only.
set -euo pipefail
layout=$1 trainer=$2 compare=$3 folder=$4
here=$(dirname "$0")
. "$here/network.sh"
. "$here/job.sh"
make_hosts "${layout%x*}"
rm -rf "$folder"
arguments=(--dataset synthetic --lr 0.02 --threads 1 --batch-size 16 --max-steps 3)
start_job "$folder/several" "$(hosts "$layout")" -- "$trainer" "${arguments[@]}" --out "$folder/several/run"
end_of_job 100
[ "$code" = 0 ] || fail "the job on several hosts ended with $code"
if [ "$layout" != 2x1 ]; then export TUTTI_RANKS_PER_HOST=${layout#*x}; fi
start_job "$folder/one" "host0:$((${layout%x*} * ${layout#*x}))" -- "$trainer" "${arguments[@]}" --out "$folder/one/run"
end_of_job 100
[ "$code" = 0 ] || fail "the job on one host ended with $code"
"$compare" "$folder"/{one,several}/run/model.safetensors || fail "the weights differ"
