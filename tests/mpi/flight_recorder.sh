#!/usr/bin/env bash
# flight_recorder.sh PROGRAM FOLDER READER MPIRUN...: rank 1 leaves a backward out. Both processes write their last
# collectives, and the reader shows the bucket at which they part.
set -euo pipefail
program=$1 folder=$2 reader=$3
shift 3
rm -rf "$folder"
TUTTI_FLIGHT_RECORDER=$folder "$@" -n 2 "$program" left_out > "$folder.log" 2>&1 && { echo "no error" >&2; exit 1; }
for rank in 0 1; do
  grep -q "rank 0 at all_reduce.*backward 2.*rank 1 at all_reduce" "$folder/flight_recorder.mpi.$rank.jsonl" ||
    { echo "no failure in the file of rank $rank" >&2; cat "$folder.log" >&2; exit 1; }
  grep -q '"library":"[^"]*MPI_THREAD_MULTIPLE' "$folder/flight_recorder.mpi.$rank.jsonl"
done
text=$(python3 -B "$reader" "$folder")
echo "$text"
grep -q "2 of 2 ranks (mpi) have left a flight recorder" <<< "$text"
[ "$(grep -c MPI_THREAD_MULTIPLE <<< "$text")" = 1 ]
grep -q "group 'world' of 2 ranks: the ranks are at different calls at #" <<< "$text"
grep -q "rank 1: all_reduce .*backward 2, after a forward without backward.* nobody has seen it end" <<< "$text"
