#!/usr/bin/env bash
# train.sh HOSTSxRANKS TRAINER COMPARE_WEIGHTS FOLDER: the trainer's network, trained on emulated hosts, gets the weights
# that the same number of ranks gets on one host. Sums over hosts may be added in another order than sums within one, so
# the weights need not be equal to the bit. On one host, 2, 4 and 8 ranks, which add in different orders too, differ by
# up to 0.4% of the largest element of a tensor after these three steps (a shift of a BatchNorm, which began as 0); without
# synchronised statistics they differ by 114%. The tolerance is 2%.
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
start_job "$folder/one" "host0:$((${layout%x*} * ${layout#*x}))" -- "$trainer" "${arguments[@]}" --out "$folder/one/run"
end_of_job 100
[ "$code" = 0 ] || fail "the job on one host ended with $code"
"$compare" "$folder"/{one,several}/run/model.safetensors 0.02 || fail "the weights differ"
