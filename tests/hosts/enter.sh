#!/usr/bin/env bash
# enter.sh HOST COMMAND...: calls the command in the namespaces of an emulated host; HOST is its number or its name.
set -euo pipefail
name=$1
[[ $name == [0-9]* ]] && name=host$name
process=/proc/$(cat "$network_folder/$name.process")
shift
exec nsenter --net="$process/ns/net" --uts="$process/ns/uts" --mount="$process/ns/mnt" \
  env TMPDIR="$network_folder/tmp${name#host}" "$@"
