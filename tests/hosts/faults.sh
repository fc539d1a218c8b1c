#!/usr/bin/env bash
# faults.sh CASE LOOP FOLDER STOP_IN: what happens to a job on two emulated hosts when the network or a rank fails.
set -euo pipefail
case=$1 loop=$2 folder=$3/$1 stop_in=$4
here=$(dirname "$0")
. "$here/network.sh"
. "$here/job.sh"
make_hosts 2
rm -rf "$folder"

# loop_on_hosts RANKS KIND [TIMEOUT]: starts the loop with so many ranks on each host, and waits until all of them are in
# it.
loop_on_hosts() {
  local rank
  start_job "$folder" "$(hosts "2x$1")" -- "$loop" "$2" "$folder" "${3:-3}"
  for ((rank = 0; rank < 2 * $1; rank++)); do wait_for "$folder/looping.$rank"; done
}

# The ranks of each host name one of the other host, or learn of it from their neighbour, and the job ends. They wait for
# 3 s and for 3 s more, and ask the absent ones for 2 s. TCP gives up after 25 s, and mpirun and its daemon look for each
# other for 16 s.
expect_ranks_named() {
  end_of_job 52
  [ "$code" != 0 ] || fail "the job ended without an error"
  local rank absent
  for rank in 0 1 2 3; do
    [ "$rank" -lt 2 ] && absent='[23]' || absent='[01]'
    # In the middle of a bucket a neighbour of this rank may be stopped too, but it answers where it is.
    expect "rank.$rank" "$1.*: ranks? [0-9, and]*$absent[0-9, and]* (did not|stopped)"
    expect "rank.$rank" "rank $absent at unknown calls .no answer"
    ! grep -qE "rank [^${absent:1:2}] at unknown calls" "$folder/rank.$rank" || fail "rank $rank names a rank of its own host"
  done
}

cut_in_sync_batch_norm() {
  loop_on_hosts 2 sync_batch_norm
  cut_link 1
  expect_ranks_named 'SyncBatchNorm'
}

cut_in_bucket() {
  loop_on_hosts 2 bucket
  cut_link 1
  expect_ranks_named 'bucket 0'
}

# Rank 1 has initialised MPI and comes late, while rank 0 waits for it.
cut_at_start() {
  export TUTTI_FAULT="rank=1,when=start,action=delay,delay=2000"
  start_job "$folder" "$(hosts 2x1)" -- "$loop" bucket "$folder"
  wait_for "$folder"/process.{0,1}
  sleep 1.5
  cut_link 1
  end_of_job 40
  [ "$code" != 0 ] || fail "the job ended without an error"
  expect rank.0 'from_environment: rank 0 waited 3 s for all 2 processes .*rank 1 did not come'
  expect rank.1 'from_environment: rank 1 waited 3 s for all 2 processes .*no answer from rank 0'
}

# Rank 1 waits before MPI_Init_thread, where rank 0 waits for it. Each rank has a file for its errors, because what a
# host that is cut off prints gets lost.
cut_in_init() {
  export TUTTI_STOP="1 MPI_Init_thread 1 delay"
  dead_after=60 start_job "$folder" "$(hosts 2x1)" -x LD_PRELOAD="$stop_in" -- \
    sh -c 'exec "$@" 2> "$0/errors.$OMPI_COMM_WORLD_RANK"' "$folder" "$loop" bucket "$folder"
  wait_for "$folder"/process.{0,1}
  sleep 1
  cut_link 1
  end_of_job 60
  [ "$code" != 0 ] || fail "the job ended without an error"
  expect errors.0 'tutti: rank 0 .process [0-9]+ on host0. has waited 10 s in MPI_Init_thread for all 2 processes'
  expect errors.1 'tutti: rank 1 .process [0-9]+ on host1. has waited 10 s in MPI_Init_thread for all 2 processes'
}

# TCP and mpirun give up before the ranks do.
cut_for_long() {
  dead_after=10 start_job "$folder" "$(hosts 2x1)" -- "$loop" bucket "$folder" 120
  wait_for "$folder"/looping.{0,1}
  cut_link 1
  end_of_job 60
  [ "$code" != 0 ] || fail "the job ended without an error"
  expect output 'host1'
}

# TCP doubles the time between two tries, so the one after a drop-out of 1.5 s comes 3 s after its beginning.
drop_out() {
  loop_on_hosts 2 "$1" 10
  cut_link 1
  sleep 1.5
  mend_link 1
  sleep 0.5
  touch "$folder/enough"
  end_of_job 30
  [ "$code" = 0 ] || fail "the job did not survive a drop-out of 1.5 s"
  for rank in 0 1 2 3; do expect "rank.$rank" done; done
}

stopped() {
  loop_on_hosts 2 "$1"
  kill -STOP "$(cat "$folder/process.3")"
  end_of_job 25
  [ "$code" != 0 ] || fail "the job ended without an error"
  for rank in 0 1 2; do expect "rank.$rank" 'rank 3 at unknown calls .no answer: its process is stopped'; done
}

case "$case" in
  cut_in_sync_batch_norm | cut_in_bucket | cut_at_start | cut_in_init | cut_for_long) "$case" ;;
  drop_out_in_*) drop_out "${case#drop_out_in_}" ;;
  stopped_in_*) stopped "${case#stopped_in_}" ;;
  *) echo "unknown case $case" && exit 64 ;;
esac
