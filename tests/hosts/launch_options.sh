#!/usr/bin/env bash
# What examples/launch.sh makes of its options: the command that it prints, and what it refuses.
set -euo pipefail
launch=$(cd "$(dirname "$0")/../../examples" && pwd)/launch.sh
case $(mpirun --version 2>/dev/null | head -1) in
  *"Open MPI) 4."*) ;;
  *) echo "SKIPPED: the parameters are those of Open MPI 4.1" && exit 77 ;;
esac
# The script hands on what the environment sets of the library, so that the expected commands hold without any of it.
unset "${!TUTTI_@}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# expect TEXT OPTIONS...: the output has the text.
expect() {
  local text=$1 output
  shift
  output=$("$launch" "$@" 2>&1) || true
  [[ $output == *"$text"* ]] && return
  echo "FAILED: expected of launch.sh $*: $text"
  echo "$output"
  exit 1
}

printf '# ours\n\n  a slots=3   # fast\nb:2\nc\n' > "$folder/hosts"
expect "'--host' 'a:3,b:2,c:1' '-n' '6'" --hostfile "$folder/hosts" --print -- program
expect "'--host' 'a:1,b:4' '-n' '5'" --hosts a,b:4 --print -- program
expect "'--bind-to' 'none' 'program' '--flag' 'two words'" --hosts a --print -- program --flag 'two words'
expect "'--map-by' 'slot:PE=8' '--bind-to' 'core' '-x' 'OMP_NUM_THREADS'" --hosts a --threads 8 --print -- program
expect "'oob_tcp_keepalive_time' '15'" --hosts a --print -- program
expect "'oob_tcp_if_include' '10.0.0.0/8'" --hosts a --network 10.0.0.0/8 --print -- program
expect "'btl_tcp_if_include' '10.0.0.0/8'" --hosts a --network 10.0.0.0/8 --print -- program
export TUTTI_FAULT=none
expect "'-x' 'TUTTI_FAULT'" --hosts a --print -- program
expect "'--oversubscribe' 'program'" --hosts a --oversubscribe --print -- program

expect "expected --hosts a,b:4 or --hostfile FILE" --print -- program
expect "expected a program after --" --hosts a --print
expect "expected a value after --threads" --hosts a --threads -- program
expect "expected hosts such as a or b:4, got 'a:x'" --hosts a:x -- program
expect "expected hosts such as a or b:4, got ':2'" --hosts :2 -- program
expect "cannot read the host file '$folder/none'" --hostfile "$folder/none" -- program
expect "--dead-after: expected at least 4 seconds, got '1'" --hosts a --dead-after 1 -- program
expect "examples/launch.sh --hosts a,b:4 -- build" --help
