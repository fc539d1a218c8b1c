#!/usr/bin/env bash
# stop_mpirun.sh TRAINER FOLDER MPIRUN...: SIGINT, SIGTERM and SIGHUP to mpirun itself stop both of its processes with a
# checkpoint, and the resumed run goes on after the step at which they stopped.
set -euo pipefail
trainer=$1 folder=$2
shift 2
if ! "$1" --version | grep -q ') 4\.'; then
  echo "skipped: only Open MPI 4 leaves its processes the time for a checkpoint after a signal (docs/train.md)"
  exit 77
fi
mpirun=("$@")
arguments=(--dataset synthetic --threads 1 --batch-size 16 --log-every 1)
rm -rf "$folder"
mkdir -p "$folder"
# shellcheck source=tests/mpi/running_trainer.sh
. "$(dirname "$0")/running_trainer.sh"

# On these signals mpirun waits for its odls_base_sigkill_timeout, sends SIGTERM, waits as long again, and sends
# SIGKILL. It ends with code 1 itself.
for signal in INT TERM HUP; do
  mpirun=("$@" --mca odls_base_sigkill_timeout 4)
  start "$signal" "$signal" --epochs 1000
  wait_for_rows "$signal" 2
  began=$SECONDS
  kill -"$signal" "$job"
  wait_for_end
  [ "$code" = 1 ] || fail "expected exit code 1 of mpirun after SIG$signal, got $code"
  [ $((SECONDS - began)) -ge 3 ] || fail "mpirun did not wait before SIGTERM"
  grep -q 'go on with  mpirun -n 2 .*--resume' "$folder/$signal.log" || fail "no checkpoint after SIG$signal to mpirun"
  mpirun=("$@")
  rows=$(losses "$signal" | wc -l)
  start "$signal" "$signal.resumed" --resume --epochs 1000 --max-steps $((rows + 1))
  wait_for_end
  [ "$code" = 0 ] || fail "the run that mpirun has ended does not go on"
  grep -q "going on after step $rows of" "$folder/$signal.resumed.log" || fail "steps before SIG$signal are lost"
done
