#!/bin/bash
# Counts the messages that the ranks of an all-reduce send to other hosts, with Open MPI's monitoring component, which
# also sees the messages of MPI's own collectives. Hosts are emulated (TUTTI_RANKS_PER_HOST). Prints a table, for
# benchmarks/results/scaling.md too, and fails where a rank sends more than a small multiple of log2 of the number of hosts, or to
# more peers, or where a rank of a full host carries more than its share of large data. Two runs with different numbers
# of collectives are subtracted, so that starting and exiting do not count.
# Usage: count_messages.sh PROGRAM "RANKS:RANKS_PER_HOST ..." MPIRUN...
set -euo pipefail
program=$1 layouts=$2
shift 2
mpirun=("$@")

if [[ $("${mpirun[0]}" --version 2>&1) == *HYDRA* ]] || ! command -v ompi_info > /dev/null ||
  ! ompi_info --param pml monitoring --level 9 | grep -q pml_monitoring_enable; then
  echo "count_messages: skipped, because this MPI has no pml_monitoring"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# run RANKS BYTES CALLS NAME: leaves NAME.RANK.prof in the folder.
run() {
  timeout 120 "${mpirun[@]}" -n "$1" --mca pml_monitoring_enable 2 --mca pml_monitoring_enable_output 3 \
    --mca pml_monitoring_filename "$folder/$4" "$program" "$2" "$3" > "$folder/output" 2>&1 ||
    { cat "$folder/output"; echo "count_messages: the run with $1 ranks and $2 bytes failed"; exit 1; }
}

# Prints the most that any rank does in one collective: "messages kilobytes peers bound_of_messages bound_of_peers
# kilobytes_on_a_full_host bound_of_them". Ranks of full hosts carry a slice each, whatever the last host has.
# A collective has an agreement and at most this many pieces of data, each sent with about 2 log2(hosts) messages.
count() {
  awk -F '\t' -v per_host="$per_host" -v ranks="$ranks" -v bytes="$bytes" -v calls="$calls" '
    $1 == "E" || $1 == "I" {
      sign = FILENAME ~ /few\.[0-9]+\.prof$/ ? -1 : 1
      messages[$2, $3] += sign * $5
      amount[$2, $3] += sign * $4
    }
    END {
      for (pair in messages) {
        split(pair, rank, SUBSEP)
        if (int(rank[1] / per_host) == int(rank[2] / per_host) || messages[pair] < calls / 2) continue
        sent[rank[1]] += messages[pair] / calls
        kilobytes[rank[1]] += amount[pair] / calls / 1000
        ++peers[rank[1]]
      }
      for (r = 0; r < ranks; ++r) {
        if (sent[r] > most) most = sent[r]
        if (kilobytes[r] > most_kilobytes) most_kilobytes = kilobytes[r]
        if (peers[r] > most_peers) most_peers = peers[r]
        if (int(r / per_host + 1) * per_host <= ranks && kilobytes[r] > most_shared) most_shared = kilobytes[r]
      }
      hosts = int((ranks + per_host - 1) / per_host)
      for (steps = 0; 2 ^ steps < hosts; ++steps) {}
      last = hosts == 1 || ranks % per_host == 0 ? per_host : ranks % per_host
      block = per_host * 4194304
      pieces = int((bytes + block - 1) / block) * int((per_host + last - 1) / last)
      share = bytes > 65536 ? 2 * bytes / per_host : (steps + 1) * bytes
      printf "%.1f %.0f %d %d %d %.0f %.0f", most, most_kilobytes, most_peers, 2 * (pieces + 1) * (steps + 1),
             2 * steps + 2, most_shared, share / 1000 + 1
    }' "$folder"/few.*.prof "$folder"/many.*.prof
}

failed=0
echo "| ranks | on a host | hosts | 8 KiB: messages, kB, peers | 64 KiB | 8 MiB |"
echo "| --- | --- | --- | --- | --- | --- |"
for layout in $layouts; do
  ranks=${layout%:*} per_host=${layout#*:}
  export TUTTI_RANKS_PER_HOST=$per_host
  row="| $ranks | $per_host | $(((ranks + per_host - 1) / per_host)) |"
  for bytes in 8192 65536 8388608; do
    calls=20
    ((bytes > 1000000)) && calls=5
    rm -f "$folder"/*.prof
    run "$ranks" "$bytes" 2 few
    run "$ranks" "$bytes" $((calls + 2)) many
    read -r messages kilobytes peers messages_bound peers_bound shared shared_bound <<< "$(count)"
    row+=" $messages, $kilobytes, $peers |"
    if ((${messages%.*} > messages_bound || peers > peers_bound)); then
      echo "count_messages: $bytes bytes on $ranks ranks, $per_host per host: expected at most $messages_bound messages" \
        "to $peers_bound peers on other hosts, got $messages to $peers"
      failed=1
    fi
    if ((shared > shared_bound)); then
      echo "count_messages: $bytes bytes on $ranks ranks, $per_host per host: expected at most $shared_bound kB from a" \
        "rank of a full host, got $shared"
      failed=1
    fi
    # A rank that sends nothing to other hosts was not counted.
    if ((ranks > per_host && peers == 0)); then
      echo "count_messages: no message between hosts was counted on $ranks ranks, $per_host per host"
      failed=1
    fi
  done
  echo "$row"
done
exit $failed
