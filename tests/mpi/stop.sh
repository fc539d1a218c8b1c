#!/usr/bin/env bash
# stop.sh TRAINER FOLDER MPIRUN...: a signal to one of two processes stops both after the same step, with a checkpoint
# and exit code 3, and the resumed run has the bits of one that nobody disturbs. A signal to mpirun itself does so too.
set -euo pipefail
trainer=$1 folder=$2
shift 2
arguments=(--dataset synthetic --threads 1 --batch-size 16 --max-steps 16 --log-every 1)
rm -rf "$folder"
mkdir -p "$folder"

fail() {
  echo "$1" >&2
  cat "$folder"/*.log >&2
  exit 1
}

# Starts the trainer in the background. Each process leaves its id in the folder and becomes the trainer.
start() {
  # shellcheck disable=SC2016
  "${mpirun[@]}" -n 2 sh -c 'echo $$ > "$0/process.$OMPI_COMM_WORLD_RANK"; exec "$@"' "$folder" "$trainer" \
    "${arguments[@]}" --out "$folder/$1" "${@:3}" > "$folder/$2.log" 2>&1 &
  job=$!
}

wait_for_rows() {
  for _ in $(seq 3000); do
    if [ "$(cat "$folder/$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ]; then return; fi
    kill -0 "$job" 2>/dev/null || fail "the run ended before its row $2"
    sleep 0.02
  done
  fail "the run has no row $2 after a minute"
}

mpirun=("$@")
start whole whole
wait "$job" || fail "the undisturbed run failed"

# Rank 1 alone gets the signal. Rank 0 says where both stopped.
start parts first
wait_for_rows parts 3
kill -TERM "$(cat "$folder/process.1")"
code=0
wait "$job" || code=$?
[ "$code" = 3 ] || fail "expected exit code 3, got $code"
grep -q 'SIGTERM: stopped after step [0-9]* of 16, with a checkpoint' "$folder/first.log" || fail "it does not say so"
grep -q 'go on with  mpirun -n 2 .*--resume' "$folder/first.log" || fail "it does not say how to go on"

# mpirun passes SIGUSR1 on to all processes and lets them end.
start parts second --resume
wait_for_rows parts 8
kill -USR1 "$job"
code=0
wait "$job" || code=$?
[ "$code" = 3 ] || fail "expected exit code 3 after SIGUSR1, got $code"

start parts last --resume
wait "$job" || fail "the resumed run failed"
cmp "$folder/whole/model.safetensors" "$folder/parts/model.safetensors" || fail "the weights differ"
losses() {
  grep -o '"train_loss":[^,]*' "$folder/$1/metrics.jsonl"
}
cmp <(losses whole) <(losses parts) || fail "the losses differ"
