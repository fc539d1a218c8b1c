#!/usr/bin/env bash
# Counts the single tests in the log that ctest has left in a build folder, build/release unless given: an entry of ctest
# is a suite of gtest. Prints the tests that failed and those that were skipped, with their reasons.
set -euo pipefail
cd "$(dirname "$0")/.."
awk '
  /^[0-9]+\/[0-9]+ Testing: / { label = $3; sub(/\..*/, "", label); ++entries }
  /^\[ RUN      \] / { reason = "" }
  /: Skipped$/ { takes_reason = 1; next }
  takes_reason { reason = $0; takes_reason = 0 }
  /^\[       OK \] .* ms\)$/ { ++passed }
  /^\[  FAILED  \] .* ms\)$/ { sub(/,$/, "", $4); ++failed; print "failed: " label "." $4 }
  /^\[  SKIPPED \] .* ms\)$/ { ++skipped; print "skipped: " label "." $4 ": " reason }
  END { printf "count: %d entries of ctest; of the tests of gtest in them %d passed, %d failed and %d were skipped\n",
        entries, passed, failed, skipped }
' "${1:-build/release}"/Testing/Temporary/LastTest.log
