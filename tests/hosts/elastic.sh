#!/usr/bin/env bash
# elastic.sh TRAINER FOLDER: of four emulated hosts one dies, with its network and its processes. examples/elastic.sh goes
# on with three, and the losses are those of a job that nobody disturbs. See tests/mpi/other_ranks.sh for the rate and the
# tolerance.
set -euo pipefail
trainer=$1 folder=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/network.sh"
. "$here/job.sh"
make_hosts 4
rm -rf "$folder"
mkdir -p "$folder"
job_folder=$folder
arguments=(--dataset synthetic --lr 0.0003 --threads 1 --batch-size 16 --max-steps 40 --checkpoint-every 5 --log-every 1
  --timeout 4)
printf 'host%s slots=1\n' 0 1 2 3 > "$folder/hosts"

# Nothing listens at that port: a host that is there refuses the connection, one that is not does not answer.
cat > "$folder/probe" << 'END'
#!/usr/bin/env bash
timeout 3 bash -c "exec 3<> /dev/tcp/$1/9" 2>&1 | grep -q refused
END
chmod +x "$folder/probe"

# start RUN: starts elastic.sh on host 0 in the background.
start() {
  on_host 0 timeout -k 5 120 "$here/../../examples/elastic.sh" --hostfile "$folder/hosts" --min-hosts 3 --pause 1 \
    --probe "$folder/probe" \
    --launch "$launcher --network 10.77.0.0/24 --dead-after 10 --oversubscribe --allow-run-as-root" -- \
    "$trainer" "${arguments[@]}" --out "$folder/$1" > "$folder/output" 2>&1 &
  job=$!
}

losses() {
  grep -o '"train_loss":[^,]*' "$folder/$1/metrics.jsonl" | sed 's/.*://'
}

start whole
end_of_job 60
[ "$code" = 0 ] || fail "the undisturbed job ended with $code"

start parts
wait_for "$folder/parts/checkpoint.safetensors"
cut_link 2
# shellcheck disable=SC2046
kill -9 $(processes_on 2) || true
end_of_job 110
[ "$code" = 0 ] || fail "expected that the job is finished on three hosts, got code $code"
expect output 'elastic: the job failed with code [0-9]*; left out, because they do not answer: host2'
expect output 'elastic: start 2 on 3 hosts: host0 host1 host3'
expect output 'ranks 4 -> 3'
paste <(losses whole) <(losses parts) | awk '
  { difference = ($1 - $2) / $1; if (difference > 1e-3 || difference < -1e-3) print "step " NR ": " $1 " and " $2 }
  END { if (NR != 40) print NR " rows, expected 40" }' > "$folder/differences"
[ ! -s "$folder/differences" ] || fail "the losses differ: $(cat "$folder/differences")"
