#!/usr/bin/env bash
# Counts the lines of code of each folder, which are neither blank nor only a comment, and prints what the last commit
# changed. Fails where a folder has more than tests/budget.txt allows it, or the library and the examples have more
# files. A commit that raises a number of that table says why.
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints "FOLDER LINES FILES" for each folder of the table, of the sources below the current directory.
count() {
  find autograd core data distributed examples kernels nn optim tests -type f -regex '.*\.\(h\|cpp\|cu\)' -print0 |
    xargs -0 awk '
      FNR == 1 { folder = FILENAME; sub(/\/.*/, "", folder); ++files[folder]; block = 0 }
      { line = $0; gsub(/^[ \t]+|[ \t]+$/, "", line) }
      block { if (!index(line, "*/")) next; block = 0; sub(/^.*\*\/[ \t]*/, "", line) }
      line ~ /^\/\*/ { if (!index(line, "*/")) { block = 1; next } sub(/^\/\*.*\*\/[ \t]*/, "", line) }
      line != "" && line !~ /^\/\// { ++lines[folder] }
      END { for (folder in files) print folder, lines[folder], files[folder] }'
}

before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git rev-parse -q --verify HEAD~1 >/dev/null && git archive HEAD~1 | tar -x -C "$before"
(cd "$before" && count 2>/dev/null) >"$before/counts" || count >"$before/counts"  # a clone may have one commit
count | awk -v before="$before/counts" '
  BEGIN {
    while ((getline <before) > 0) then_lines[$1] = $2
    while ((getline <"tests/budget.txt") > 0) if ($0 !~ /^#/ && NF == 2) budget[$1] = $2
  }
  { lines[$1] = $2; if ($1 != "tests") { files += $3; if ($1 != "examples") library += $2 } }
  function check(what, count, limit) {
    if (count <= limit) return
    printf "budget: %s has %d, and tests/budget.txt allows %d\n", what, count, limit >"/dev/stderr"
    failed = 1
  }
  END {
    count = split("core kernels autograd nn optim distributed data examples tests", order)
    for (i = 1; i <= count; ++i) {
      folder = order[i]
      printf "budget: %-12s %6d of %6d lines, %+d in the last commit\n", folder, lines[folder], budget[folder],
             lines[folder] - then_lines[folder]
      check(folder, lines[folder], budget[folder])
    }
    printf "budget: %-12s %6d of %6d lines\n", "library", library, budget["library"]
    printf "budget: %-12s %6d of %6d, of library and examples\n", "files", files, budget["files"]
    check("the library", library, budget["library"])
    check("the number of files", files, budget["files"])
    exit failed
  }'
