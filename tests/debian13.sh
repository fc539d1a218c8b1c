#!/usr/bin/env bash
# Runs the README's two commands in a root file system of Debian 13: the quickstart, then every test. It needs root.
# debootstrap makes the root file system in $FOLDER (build/debian13) in about 2 minutes; a second call uses it again and
# compiles only what has changed.
#   tests/debian13.sh                 runs both commands
#   tests/debian13.sh COMMAND ...     runs this command in the root file system's copy of the tree instead
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${FOLDER:-$PWD/build/debian13}
if [ "$(id -u)" -ne 0 ]; then
  echo "tests/debian13.sh: run it as root, because debootstrap and chroot need that" >&2
  exit 1
fi
.ci/setup.sh debootstrap rsync
if [ ! -e "$folder/var/lib/dpkg/status" ]; then
  debootstrap --variant=minbase trixie "$folder"
fi
cp /etc/resolv.conf "$folder/etc/resolv.conf"
grep -qs localhost "$folder/etc/hosts" || echo "127.0.0.1 localhost" >>"$folder/etc/hosts"
rsync --archive --delete --filter=':- .gitignore' --exclude=/.git ./ "$folder/tutti"

# Mounts what programs expect in a namespace of its own, so that nothing is left mounted, and runs a command there.
run_inside() {
  unshare --mount --pid --fork --kill-child bash -c '
    folder=$1 && shift
    mount -t proc proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    mount --rbind /sys "$folder/sys"  # Open MPI 5 looks there for processors and networks
    mount -t tmpfs tmpfs "$folder/tmp"  # its mpirun fails where a folder of an earlier one has the same process number
    exec chroot "$folder" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"' \
    bash "$folder" bash -c 'cd /tutti && exec "$@"' bash "$@"
}
if [ $# -gt 0 ]; then
  run_inside "$@"
else
  run_inside examples/quickstart.sh
  run_inside tests/run.sh --all
fi
