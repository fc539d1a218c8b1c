# shellcheck shell=bash disable=SC2154,SC2034  # the scripts set and read the variables
# Sourced by scripts that run the trainer under mpirun and disturb it: starts it in the background, waits for its rows of
# metrics, and compares runs. They set `trainer`, `folder`, `mpirun` and `arguments`.

fail() {
  echo "$1" >&2
  cat "$folder"/*.log >&2
  exit 1
}

# start FOLDER LOG [FLAG...]: starts the trainer in the background on $ranks processes. Each leaves its id in the file
# $process and becomes the trainer, or does what else `become` says.
# shellcheck disable=SC2016
as_itself='echo $$ > "$process"; exec "$@"'
become=$as_itself
start() {
  count_rows "$1"
  rm -f "$folder"/process.*
  # shellcheck disable=SC2016
  "${mpirun[@]}" -n "${ranks:-2}" sh -c 'process=$0/process.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; '"$become" "$folder" "$trainer" \
    "${arguments[@]}" --out "$folder/$1" "${@:3}" > "$folder/$2.log" 2>&1 &
  job=$!
}

# Waits for the end of the job, and sets `code`. Open MPI 5's mpirun may end before its processes.
wait_for_end() {
  code=0
  wait "$job" || code=$?
  for process in "$folder"/process.*; do
    [ ! -e "$process" ] || timeout 60 tail --pid="$(cat "$process")" -f /dev/null || fail "$process has not ended"
  done
}

# count_rows FOLDER: remembers how many rows it has before a run goes on there.
count_rows() {
  rows_before=$(losses "$1" | wc -l)
}

# wait_for_rows FOLDER COUNT: waits until the run that has started has written so many rows of its own.
wait_for_rows() {
  for _ in $(seq 3000); do
    if [ "$(losses "$1" | wc -l)" -ge $((rows_before + $2)) ]; then return; fi
    kill -0 "$job" 2>/dev/null || fail "the run ended before its row $2"
    sleep 0.02
  done
  fail "the run has no row $2 after a minute"
}

# losses FOLDER: the training losses, one in a line; none before the first
losses() {
  grep -so '"train_loss":[^,]*' "$folder/$1/metrics.jsonl" || true
}
