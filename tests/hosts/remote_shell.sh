#!/usr/bin/env bash
# remote_shell.sh HOST COMMAND...: calls a shell command on an emulated host, for mpirun in the place of ssh. As with
# ssh, the command gets none of the caller's environment.
set -euo pipefail
host=$1
shift
exec "$(dirname "$0")/enter.sh" "$host" env -i PATH="$PATH" HOME=/ TMPDIR="$network_folder/tmp${host#host}" \
  network_folder="$network_folder" sh -c "$*"
