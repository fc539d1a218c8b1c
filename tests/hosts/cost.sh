#!/usr/bin/env bash
# cost.sh delay|rate COST_PROGRAM FOLDER: what SyncBatchNorm of 1,024 channels takes longer on two hosts whose links are
# slow, against the model of benchmarks/results/scaling.md: two all-reduces of 8 (2 C + 8) bytes, each of a latency and a time for each
# byte. A delay needs netem of the kernel, a rate its token bucket.
set -euo pipefail
kind=$1 program=$2 folder=$3
here=$(dirname "$0")
. "$here/network.sh"
. "$here/job.sh"
make_hosts 2
rm -rf "$folder"
bytes=$((8 * (2 * 1024 + 8)))

# Sets `micros` to the time of one forward and backward.
measure() {
  start_job "$folder" "$(hosts 2x1)" -- "$program" 1024 "$1"
  end_of_job 60
  [ "$code" = 0 ] || fail "the job ended with $code"
  micros=$(grep -xE '[0-9]+' "$folder/output") || fail "expected a time"
}

slow_down() {
  local host
  for host in 0 1; do
    on_host bridge tc qdisc add dev "port$host" root "$@" 2> "$network_folder/tc.log" ||
      skip "the kernel cannot slow a link down: $(cat "$network_folder/tc.log")"
  done
}

case "$kind" in
  delay) slow_down netem delay 2ms && predicted=$((2 * 2000)) ;;
  rate) slow_down tbf rate 8mbit burst 4kb latency 1s && predicted=$((2 * bytes)) ;;  # a microsecond for each byte
  *) echo "unknown kind $kind" && exit 64 ;;
esac
measure 40
slow=$micros
for host in 0 1; do on_host bridge tc qdisc del dev "port$host" root; done
measure 200
added=$((slow - micros))
echo "SyncBatchNorm of 1,024 channels takes $micros us on two hosts. With a slow link ($kind) it takes $added us more;" \
  "the model adds $predicted us"
[ $((added * 2)) -ge "$predicted" ] && [ "$added" -le $((predicted * 3)) ] ||
  fail "expected an addition between half and three times the model's"
