#!/usr/bin/env bash
# Trains on many hosts and goes on without those that fail: it starts the trainer, and where the job fails it leaves out
# the hosts that do not answer any more and starts it again from the last checkpoint, until the run is finished.
#
#   examples/elastic.sh --hostfile FILE [OPTIONS] -- build/release/examples/train_resnet --out DIR ...
#
#   --hostfile FILE   the hosts, one in a line, as the launcher reads them ("node1 slots=4"); the file stays as it is
#   --min-hosts N     give up when fewer hosts are left [1]
#   --retries N       give up after so many failures in a row in which every host still answers [3]
#   --pause SECONDS   wait before each new start, so that ranks of the failed job can end [5]
#   --launch COMMAND  starts the job, called as COMMAND --hostfile FILE -- PROGRAM... [launch.sh beside this script]
#   --probe COMMAND   finds out whether a host is there, called as COMMAND HOST
#                     [ssh -o BatchMode=yes -o ConnectTimeout=5 HOST true]
#
# SIGINT, SIGTERM and SIGHUP stop the job with a checkpoint, a second SIGINT or SIGTERM ends it at once. The exit code is
# that of the trainer (docs/train.md), or 1 where too few hosts are left.
set -uo pipefail

say() {
  echo "elastic: $*" >&2
}

refuse() {
  say "$*; the top of $0 explains the options"
  exit 2
}

probe_by_ssh() {
  ssh -o BatchMode=yes -o ConnectTimeout=5 "$1" true
}
export -f probe_by_ssh

hostfile='' min_hosts=1 retries=3 pause=5 probe='probe_by_ssh' launch=$(dirname "$0")/launch.sh
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case "$1" in
    --hostfile | --min-hosts | --retries | --pause | --launch | --probe) ;;
    *) refuse "unknown option $1" ;;
  esac
  [ $# -gt 1 ] || refuse "$1 needs a value"
  name=${1#--}
  declare "${name//-/_}=$2"
  shift 2
done
shift || refuse "expected -- and the command of the trainer"
[ $# -gt 0 ] || refuse "expected the command of the trainer behind --"
[ -r "$hostfile" ] || refuse "cannot read --hostfile '$hostfile'"
for name in min_hosts retries pause; do
  [[ ${!name} =~ ^[0-9]+$ ]] || refuse "--${name/_/-} must be a whole number, not '${!name}'"
done

state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
hosts=$state/hosts
sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$hostfile" > "$hosts"

# name_of LINE: prints the name of a host, without the number of its ranks.
name_of() {
  local host=${1%%[[:space:]]*}
  echo "${host%%:*}"
}

# Prints the names of the hosts in one line.
names() {
  local line all=''
  while read -r line; do all+=" $(name_of "$line")"; done < "$hosts"
  echo "${all# }"
}

# Sets `code` to the exit code of the job. SIGUSR1 is the signal that mpirun passes on and nothing more, so that the ranks
# have the time that they need for a checkpoint. In a session of its own mpirun does not get the SIGINT of a terminal.
run_job() {
  local seen=-1
  running=1
  # shellcheck disable=SC2086  # words of a command
  setsid $launch --hostfile "$hosts" -- "$@" < /dev/null &
  job=$!
  if [ "$signals" -gt 0 ]; then kill -USR1 "$job"; fi
  until [ "$seen" = "$signals" ]; do  # a signal to this script ends the wait
    seen=$signals
    wait "$job" 2> /dev/null  # bash would say that it was killed
    code=$?
  done
  running=0 job=''
}

signals=0 running=0 job=''
pass_on() {
  signals=$((signals + 1))
  [ "$running" = 1 ] || exit 3  # between two starts there is nothing to stop
  [ -n "$job" ] || return  # run_job() passes it on
  if [ "$signals" = 1 ]; then
    say "stopping with a checkpoint; a second signal ends the job at once"
    kill -USR1 "$job" 2> /dev/null
  elif [ "$1" != HUP ]; then  # a terminal that closes sends it several times
    kill -TERM "$job" 2> /dev/null
  fi
}
trap 'pass_on HUP' HUP
trap 'pass_on INT' INT
trap 'pass_on TERM' TERM

# Removes the hosts that do not answer within 20 s, and prints their names. All are asked at the same time.
leave_out_dead_hosts() {
  local line host
  while read -r line; do
    host=$(name_of "$line")
    # shellcheck disable=SC2086  # words of a command
    (timeout 20 bash -c '"$@"' probe $probe "$host" < /dev/null > /dev/null 2>&1 && echo "$line" > "$state/alive.$host") &
  done < "$hosts"
  wait
  : > "$state/left"
  while read -r line; do
    host=$(name_of "$line")
    if [ -e "$state/alive.$host" ]; then echo "$line" >> "$state/left"; else echo "$host"; fi
  done < "$hosts"
  rm -f "$state"/alive.*
  mv "$state/left" "$hosts"
}

failures=0 starts=0
while :; do
  count=$(wc -l < "$hosts")
  if [ "$count" -lt "$min_hosts" ] || [ "$count" = 0 ]; then
    say "$count hosts are left, and --min-hosts is $min_hosts"
    exit 1
  fi
  starts=$((starts + 1))
  say "start $starts on $count hosts: $(names)"
  run_job "$@" --resume
  case "$code" in
    0) exit 0 ;;
    3) exit 3 ;;  # stopped by a signal, which is no failure
  esac
  if [ "$signals" -gt 0 ]; then exit "$code"; fi
  # Flags or data that cannot be used stay so. Later it may be the run folder, which a rank of the failed job still has.
  if [ "$code" = 2 ] && [ "$starts" = 1 ]; then exit 2; fi
  dead=$(leave_out_dead_hosts)
  if [ -n "$dead" ]; then
    failures=0
    say "the job failed with code $code; left out, because they do not answer: ${dead//$'\n'/ }"
  else
    failures=$((failures + 1))
    say "the job failed with code $code, and all hosts answer (failure $failures, --retries $retries)"
    if [ "$failures" -gt "$retries" ]; then exit "$code"; fi
  fi
  sleep "$pause" &
  wait $!
done
