#!/usr/bin/env bash
# other_ranks.sh TRAINER FOLDER MPIRUN...: a run that is stopped by signals goes on with more processes, then on threads of
# one process, then with fewer processes, and follows the losses of a run that nobody disturbs. In float32, and at so low
# a rate, rounding changes them by about 1e-5 of their value, and other images by 1e-2 and more. trainer_test.cpp compares
# in float64.
set -euo pipefail
trainer=$1 folder=$2
shift 2
mpirun=("$@")
arguments=(--dataset synthetic --threads 1 --batch-size 14 --max-steps 40 --log-every 1 --lr 0.0001)
rm -rf "$folder"
mkdir -p "$folder"
# shellcheck source=tests/mpi/running_trainer.sh
. "$(dirname "$0")/running_trainer.sh"

start whole whole
wait_for_end
[ "$code" = 0 ] || fail "the undisturbed run failed"

# stop_after RANKS ROWS LOG: goes on with so many processes, and stops after so many rows.
stop_after() {
  ranks=$1 start parts "$3" --resume
  wait_for_rows parts "$2"
  kill -TERM "$(cat "$folder/process.$(($1 - 1))")"
  wait_for_end
  [ "$code" = 3 ] || fail "expected exit code 3 of $3, got $code"
}
stop_after 2 2 first
stop_after 3 2 second
grep -q 'ranks 2 -> 3: the global batch of 14 images and the order of the images stay' "$folder/second.log" ||
  fail "it does not say what stays"
# Five ranks that are threads of one process
count_rows parts
"$trainer" "${arguments[@]}" --out "$folder/parts" --resume --ranks 5 > "$folder/third.log" 2>&1 &
job=$!
wait_for_rows parts 2
kill -INT "$job"
wait_for_end
[ "$code" = 3 ] || fail "expected exit code 3 of threads, got $code"
ranks=1 start parts last --resume --ranks 1  # not the 5 threads of the run before
wait_for_end
[ "$code" = 0 ] || fail "the resumed run failed"
grep -q 'ranks 5 -> 1' "$folder/last.log" || fail "it does not say how many ranks there were"

paste <(losses whole) <(losses parts) | sed 's/"train_loss"://g' | awk '
  { difference = ($1 - $2) / $1; if (difference > 1e-3 || difference < -1e-3) print "step " NR ": " $1 " and " $2 }
  END { if (NR != 40) print NR " rows, expected 40" }' > "$folder/differences.log"
[ ! -s "$folder/differences.log" ] || fail "the losses differ"
