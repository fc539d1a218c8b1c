#!/usr/bin/env bash
# stop.sh TRAINER FOLDER MPIRUN...: a signal to one of two processes stops both after the same step, with a checkpoint
# and exit code 3, and the resumed run has the bits of one that nobody disturbs. A second signal ends the job at once.
set -euo pipefail
trainer=$1 folder=$2
shift 2
mpirun=("$@")
two='mpirun -n 2' one='mpirun -n 1' hydra=
if [[ $("$1" --version 2>&1) == *HYDRA* ]]; then two='(with the same launcher, 2 processes)' one=$trainer hydra=yes; fi
arguments=(--dataset synthetic --threads 1 --batch-size 16 --max-steps 16 --log-every 1)
rm -rf "$folder"
mkdir -p "$folder"
# shellcheck source=tests/mpi/running_trainer.sh
. "$(dirname "$0")/running_trainer.sh"

start whole whole
wait_for_end
[ "$code" = 0 ] || fail "the undisturbed run failed"

# Rank 1 alone gets the signal. Rank 0 says where both stopped.
start parts first
wait_for_rows parts 3
kill -TERM "$(cat "$folder/process.1")"
wait_for_end
[ "$code" = 3 ] || fail "expected exit code 3, got $code"
grep -q 'SIGTERM: stopped after step [0-9]* of 16, with a checkpoint' "$folder/first.log" || fail "it does not say so"
grep -q "go on with  $two .*--resume" "$folder/first.log" || fail "it does not say how to go on"

# mpirun passes SIGUSR1 on to all processes and lets them end.
# After a signal that MPICH 4.0's mpiexec has passed on, its own code was 0 in 2 of 8 jobs whose processes all had 3. So
# there a shell beside each process writes the code.
# shellcheck disable=SC2016
[ -z "$hydra" ] || become='trap : USR1; "$@" & echo $! > "$process"
  while kill -0 $! 2>/dev/null; do wait $!; code=$?; done; echo $code >> "$0/codes"; exit $code'
start parts second --resume
wait_for_rows parts 3
kill -USR1 "$job"
wait_for_end
become=$as_itself
if [ "$hydra" ]; then code=$(sort -u "$folder/codes") && [ "$(wc -l < "$folder/codes")" = 2 ] || fail "a code is missing"; fi
[ "$code" = 3 ] || fail "expected exit code 3 after SIGUSR1, got $code"
grep -q 'SIGUSR1: stopped after step [0-9]* of 16, with a checkpoint' "$folder/second.log" || fail "it does not say so"

start parts last --resume
wait_for_end
[ "$code" = 0 ] || fail "the resumed run failed"
cmp "$folder/whole/model.safetensors" "$folder/parts/model.safetensors" || fail "the weights differ"
cmp <(losses whole) <(losses parts) || fail "the losses differ"

# A job of one process is started by mpirun again, too.
ranks=1 start single single
wait_for_rows single 1
kill -TERM "$(cat "$folder/process.0")"
wait_for_end
grep -q "go on with  $one .*--resume" "$folder/single.log" || fail "it does not say how to go on with one process"

# A step of so large a batch takes much longer than the time between the two signals.
arguments=(--dataset synthetic --threads 1 --batch-size 2048)
start twice twice
for _ in $(seq 3000); do
  if [ -e "$folder/twice/config.json" ]; then break; fi
  sleep 0.02
done
process=$(cat "$folder/process.0")
kill -TERM "$process"
for _ in $(seq 500); do
  if grep -q 'a second signal ends it at once' "$folder/twice.log"; then break; fi
  sleep 0.02
done
kill -TERM "$process"
wait_for_end
case "$code" in 0 | 3) fail "expected that a second signal ends the job, got code $code" ;; esac
[ ! -e "$folder/twice/checkpoint.safetensors" ] || fail "a second signal did not end the job at once"
