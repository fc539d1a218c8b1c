#!/usr/bin/env bash
# conformance.sh MPI_TESTS FOLDER: the tests of process groups pass with two emulated hosts of two ranks.
set -euo pipefail
here=$(dirname "$0")
. "$here/network.sh"
. "$here/job.sh"
make_hosts 2
# Left out is what has nothing to do with hosts and takes long: hundreds of groups that come and go, and the trainer.
# Some 25 s, and 90 beside a build: ranks that wait for each other then wait for their core at every step.
deadline=200 start_job "$2" "$(hosts 2x2)" -x TMPDIR="$2" -- "$1" --gtest_brief=1 \
  --gtest_filter='Mpi*-MpiTrainer.*:Mpi.AHundredGroupsLeaveNothingBehind:Mpi.WorldsThatFailComeAndGo'
end_of_job 210
cat "$2/output"
[ "$code" = 0 ] || fail "the tests ended with $code"
