#!/usr/bin/env bash
# Rehearses the three calls of tests/gpu/run.sh with build/gpu/carry.tar.xz of tests/gpu/prepare.sh, on a machine without
# a GPU, in a root that has neither a compiler nor a network. The tests for the emulator replace those for a GPU,
# and training and the benchmarks run on the CPU. The first step of the tests fails on purpose, and the others must follow.
# Tests of deadlines fail on a machine that is busy otherwise.
#   tests/gpu/rehearse.sh ROOT BUILD [FOLDER...]
# ROOT is made by debootstrap, which needs a network and the user root, where it does not exist. BUILD is a folder with
# tests/gpu/gpu_tests_emulated. Each FOLDER appears in ROOT under its own path: that of a Python with PyTorch, for example.
# SLOWER=FACTOR stretches the limits of the steps, STEPS=NUMBER says how long to train, CALLS="1 2 3" which calls to run.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
cd "$(dirname "$0")/../.."
root=$1 tests=$2/tests/gpu/gpu_tests_emulated
shift 2
tests/gpu/run.sh plan
[ -e "$root/usr/bin" ] || debootstrap --variant=minbase --include=python3 trixie "$root" >/dev/null

# The sources and the package, as they travel.
carry=$root/repo/build/gpu/carry
rm -rf "$root/repo"
mkdir -p "$carry"
git ls-files -z | tar --null -T - -c | tar -C "$root/repo" -x
tar -C "$carry" -xJf build/gpu/carry.tar.xz
strip -o "$carry/emulated" "$tests"
ldd "$tests" | awk '$3 ~ /^\// && $1 !~ /^lib(c|m)\.so/ { print $3 }' | xargs cp -L -t "$carry/lib"
cat >"$carry/gpu_tests" <<'END'
#!/bin/sh
case "$*" in *=Small*) echo "[  FAILED  ] Small.FailsOnPurpose" && exit 1 ;; esac
exec "$(dirname "$0")/emulated" "$@"
END
tar -C "$carry" -c . | xz -T1 -0 >"$carry.tar.xz"
rm -rf "$carry"

# inside COMMAND... runs a command in the root: no network, and of this machine only the folders that were named.
paths=$(printf '%s/bin:' "$@")
export root paths
inside() {
  unshare --net --mount bash -euc '
    mount -t proc proc "$root/proc"
    for folder in $1; do mkdir -p "$root$folder" && mount --bind -o ro "$folder" "$root$folder"; done
    shift
    chroot "$root" /usr/bin/env -i PATH="${paths#/bin:}/usr/bin:/bin" DEVICE=cpu STEPS="${STEPS:-4}" \
      SLOWER="${SLOWER:-20}" bash -c "cd /repo && \"\$@\"" - "$@"' - "${folders[*]}" "$@"
}
folders=("$@")
for tool in cc gcc c++ nvcc cmake; do
  ! inside bash -c "command -v $tool" || { echo "rehearse: expected no $tool in $root" >&2; exit 1; }
done
status=0
for call in ${CALLS:-1 2 3}; do
  inside tests/gpu/run.sh "$call" || true
  expected=0
  [ "$call" != 1 ] || expected=1
  grep -q "^call $call: $expected steps failed" "$root/repo/build/gpu/out/summary-$call.txt" ||
    { echo "rehearse: expected $expected failed steps in call $call" >&2; status=1; }
done
exit $status
