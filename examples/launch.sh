#!/usr/bin/env bash
# Starts a program on several hosts with Open MPI, so that the job ends when a host dies.
#   examples/launch.sh --hosts a,b:4 -- build/release/examples/train_resnet --out runs/a
#   examples/launch.sh --hostfile FILE -- PROGRAM ARGUMENTS...
# A host is a name that ssh reaches without a password, and the number of its ranks: b:4, or in a file, one host a line,
# "b:4" or "b slots=4"; without a number one rank. The program has the same path on every host. Before the --:
#   --network CIDR        the network for messages between hosts, such as 10.0.0.0/24; otherwise Open MPI tries all
#   --threads N           binds each rank to N cores of its own and sets OMP_NUM_THREADS; otherwise ranks are not bound,
#                         and the ranks of a host share its cores
#   --dead-after SECONDS  how long mpirun waits for a sign of life of a host (30)
#   --print               prints the command and does not run it
# and any other option is passed on to mpirun, such as --allow-run-as-root or --oversubscribe. The variables OMP_* and
# TUTTI_* of the environment are passed on to all ranks. docs/hosts.md says more.
set -euo pipefail

fail() {
  echo "launch: $*" >&2
  exit 2
}

hosts='' network='' threads='' dead_after=30 print='' options=()

# Reads hosts of a file: what follows # is a comment, and "b slots=4" is b:4.
read_hostfile() {
  [ -r "$1" ] || fail "cannot read the host file '$1'"
  sed -E 's/#.*//; s/[[:space:]]+slots=/:/; s/[[:space:]]+$//; s/^[[:space:]]+//; /^$/d' "$1" | paste -sd,
}

while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case "$1" in
    --help | -h) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0" && exit ;;
    --print) print=yes ;;
    --hosts | --hostfile | --network | --threads | --dead-after)
      [ $# -ge 2 ] && [ "$2" != -- ] || fail "expected a value after $1"
      case "$1" in
        --hosts) hosts=$2 ;;
        --hostfile) hosts=$(read_hostfile "$2") ;;
        --network) network=$2 ;;
        --threads) threads=$2 ;;
        --dead-after) dead_after=$2 ;;
      esac
      shift
      ;;
    *) options+=("$1") ;;
  esac
  shift
done
[ $# -ge 2 ] || fail "expected a program after --, as in: examples/launch.sh --hosts a,b:4 -- PROGRAM"
shift
[ -n "$hosts" ] || fail "expected --hosts a,b:4 or --hostfile FILE with a host in it"
[[ $dead_after =~ ^[0-9]+$ && $dead_after -ge 4 ]] || fail "--dead-after: expected at least 4 seconds, got '$dead_after'"
[[ -z $threads || $threads =~ ^[1-9][0-9]*$ ]] || fail "--threads: expected a number from 1, got '$threads'"

# Every host with its number of ranks, and their sum.
ranks=0 slots=()
IFS=, read -ra each <<< "$hosts"
for host in "${each[@]}"; do
  count=1
  [[ $host == *:* ]] && count=${host##*:}
  [[ $count =~ ^[1-9][0-9]*$ && -n ${host%:*} ]] || fail "expected hosts such as a or b:4, got '$host'"
  slots+=("${host%:*}:$count")
  ranks=$((ranks + count))
done

# The parameters that only Open MPI 4.1 knows; the tests of several hosts, tests/hosts/job.sh, have a few more. Open MPI 5
# starts its daemons with PRRTE, which has other names for them.
version=$(mpirun --version 2>/dev/null | head -1) || fail "there is no mpirun; install Open MPI (openmpi-bin)"
parameters=()
case "$version" in
  *"Open MPI) 4."*)
    parameters+=(--mca oob_tcp_keepalive_time $((dead_after / 2)) --mca oob_tcp_keepalive_probes 2
      --mca oob_tcp_keepalive_intvl $((dead_after / 4)))
    [ -n "$network" ] && parameters+=(--mca oob_tcp_if_include "$network")
    ;;
  *"Open MPI"*) echo "launch: only Open MPI 4.1 is told to look for dead hosts; this is $version" >&2 ;;
  *) fail "expected Open MPI, got '$version'" ;;
esac
[ -n "$network" ] && parameters+=(--mca btl_tcp_if_include "$network")
if [ -n "$threads" ]; then
  export OMP_NUM_THREADS=$threads
  parameters+=(--map-by "slot:PE=$threads" --bind-to core)
else
  parameters+=(--map-by slot --bind-to none)
fi
while read -r name; do parameters+=(-x "$name"); done < <(compgen -e | grep -E '^(OMP|TUTTI)_' || true)

retries=$(cat /proc/sys/net/ipv4/tcp_retries2 2>/dev/null || echo 0)
[ "$retries" -le 8 ] ||
  echo "launch: this host sends lost data $retries times again (15 minutes with 15) before it gives a connection up, and" \
    "mpirun waits as long for a dead host. As root on every host: sysctl -w net.ipv4.tcp_retries2=6 (25 seconds)" >&2

command=(mpirun --host "$(IFS=,; echo "${slots[*]}")" -n "$ranks" "${parameters[@]}" "${options[@]}" "$@")
if [ -n "$print" ]; then
  echo "${command[@]@Q}"
  exit
fi
exec "${command[@]}"
