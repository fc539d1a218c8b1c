#!/usr/bin/env bash
# elastic.sh TRAINER FOLDER [MPIRUN...]: examples/elastic.sh goes on without a host that dies. Hosts are names, ranks are
# threads of one process, one for each host, and a file says that a host is dead. With MPIRUN ranks are processes, and
# both hosts are this machine.
set -euo pipefail
trainer=$1 folder=$2
shift 2
mpirun=("$@")
elastic=$(dirname "$0")/../../examples/elastic.sh
# See tests/mpi/other_ranks.sh for the rate and the tolerance.
arguments=(--dataset synthetic --threads 1 --batch-size 16 --max-steps 10 --log-every 1 --checkpoint-every 2 --lr 0.001)
if [ ${#mpirun[@]} -gt 0 ] && ! "${mpirun[0]}" --version | grep -q ') 4\.'; then
  echo "elastic: skipped: mpirun after Open MPI 4 takes the two names of this machine for machines without a network"
  exit 77
fi
rm -rf "$folder"
mkdir -p "$folder/dead"

fail() {
  echo "$1" >&2
  for log in "$folder"/*.log; do
    echo "--- $log" >&2
    cat "$log" >&2
  done
  exit 1
}

# run LOG RUN_FOLDER [ELASTIC'S OPTION...] [-- TRAINER'S FLAG...]: sets `code`.
run() {
  local log=$1 out=$2 options=() flags=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1") && shift; done
  [ $# = 0 ] || flags=("${@:2}")
  code=0
  "$elastic" --hostfile "$folder/hosts" --pause 0 --launch "$folder/launch" --probe "$folder/probe" "${options[@]}" -- \
    "$trainer" "${arguments[@]}" --out "$folder/$out" "${flags[@]}" > "$folder/$log.log" 2>&1 || code=$?
}

expect() {
  [ "$code" = "$2" ] || fail "expected exit code $2 of $1, got $code"
  grep -q "$3" "$folder/$1.log" || fail "$1 does not say: $3"
}

losses() {
  grep -o '"train_loss":[^,]*' "$folder/$1/metrics.jsonl" | sed 's/.*://'
}

expect_same_losses() {
  paste <(losses whole) <(losses "$1") | awk '
    { difference = ($1 - $2) / $1; if (difference > 1e-3 || difference < -1e-3) print "step " NR ": " $1 " and " $2 }
    END { if (NR != 10) print NR " rows, expected 10" }' > "$folder/differences.log"
  [ ! -s "$folder/differences.log" ] || fail "the losses differ from those of the undisturbed run"
}

# The launcher lets the last host of four die in the sixth step, if `victim` names it, and ends the job with it.
cat > "$folder/probe" << 'END'
#!/usr/bin/env bash
[ ! -e "$(dirname "$0")/dead/$1" ]
END
cat > "$folder/launch" << 'END'
#!/usr/bin/env bash
folder=$(dirname "$0") hosts=$2
shift 3  # --hostfile FILE --
victim=$(cat "$folder/victim" 2>/dev/null)
if [ -n "$victim" ] && [ ! -e "$folder/dead/$victim" ]; then
  touch "$folder/dead/$victim"
  export TUTTI_FAULT=rank=2,group=world/normalization,collective=200,action=kill
fi
if [ -e "$folder/mpirun" ]; then
  mapfile -t mpirun < "$folder/mpirun"
  exec "${mpirun[@]}" --hostfile "$hosts" -- "$@"
fi
exec "$@" --ranks "$(wc -l < "$hosts")"
END
chmod +x "$folder/probe" "$folder/launch"

if [ ${#mpirun[@]} -gt 0 ]; then
  printf '%s\n' "${mpirun[@]}" > "$folder/mpirun"
  printf 'localhost\nlocalhost\n127.0.0.1\n' > "$folder/hosts"
  run whole whole
  expect whole 0 '3 ranks (mpi)'
  echo 127.0.0.1 > "$folder/victim"
  run parts parts
  expect parts 0 'left out, because they do not answer: 127.0.0.1'
  expect parts 0 'ranks 3 -> 2'
  expect_same_losses parts
  exit
fi

printf '# the hosts of this test\nnode1 slots=1\n\nnode2\nnode3:1  # the one that dies\nnode4\n' > "$folder/hosts"
cp "$folder/hosts" "$folder/hosts.before"
run whole whole
expect whole 0 'elastic: start 1 on 4 hosts: node1 node2 node3 node4'
expect whole 0 'test accuracy'

# One of four hosts dies: the job goes on with three.
echo node3 > "$folder/victim"
run parts parts
expect parts 0 'elastic: the job failed with code 137; left out, because they do not answer: node3'
expect parts 0 'elastic: start 2 on 3 hosts: node1 node2 node4'
expect parts 0 'going on after step 4 of 10'
expect parts 0 'ranks 4 -> 3'
expect_same_losses parts
cmp "$folder/hosts" "$folder/hosts.before" || fail "the host file has changed"

# Too few hosts are left.
rm "$folder"/dead/*
run few few --min-hosts 4
expect few 1 'elastic: 3 hosts are left, and --min-hosts is 4'

# All hosts answer, and the job fails again and again, because its loss is not finite.
rm "$folder/victim" "$folder"/dead/*
run again again --retries 1 -- --lr 1e20
expect again 1 'failure 2, --retries 1'
[ "$(grep -c 'elastic: start' "$folder/again.log")" = 2 ] || fail "expected two starts"

# Wrong flags stay wrong.
run flag flag -- --model resnet19
expect flag 2 'resnet19'
[ "$(grep -c 'elastic: start' "$folder/flag.log")" = 1 ] || fail "expected one start"
run option option --hosts a,b
expect option 2 'elastic: unknown option --hosts'

# A signal stops the job with a checkpoint, and another call goes on.
env --default-signal=HUP "$elastic" --hostfile "$folder/hosts" --launch "$folder/launch" --probe "$folder/probe" -- \
  "$trainer" "${arguments[@]}" --max-steps 100 --out "$folder/signal" > "$folder/signal.log" 2>&1 &
job=$!
for _ in $(seq 3000); do
  if [ "$(losses signal 2>/dev/null | wc -l)" -ge 2 ]; then break; fi
  sleep 0.02
done
kill -HUP "$job"  # as a terminal that closes does, twice
for _ in $(seq 500); do
  if grep -q 'stopping with a checkpoint' "$folder/signal.log"; then break; fi
  sleep 0.02
done
kill -HUP "$job" 2>/dev/null || true
code=0
wait "$job" || code=$?
expect signal 3 'SIGUSR1: stopped after step [0-9]* of 100, with a checkpoint'
rows=$(losses signal | wc -l)
run on signal -- --max-steps $((rows + 1))
expect on 0 "going on after step $rows of $((rows + 1))"
