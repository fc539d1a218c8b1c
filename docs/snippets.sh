#!/usr/bin/env bash
# Checks that the C++ code of README.md and docs/**/*.md is that of the examples, which are compiled. Below a line
#   <!-- snippet: examples/NAME.cpp -->
# stands that file as a ```cpp block or, if the file marks parts by lines `// [snippet]` and `// [/snippet]`, its first
# part; the next such line of the page stands above the second part, and so on. `<!-- snippet: examples/NAME.cpp 3 -->`
# shows the third part, and the next line goes on from there. `docs/snippets.sh --fix` writes the blocks.
set -euo pipefail
cd "$(dirname "$0")/.."

fill() {
  awk '
    function block(file, number,   line, all, parts, part, inside, indent, want) {
      while ((status = (getline line < file)) > 0) {
        all = all line "\n"
        if (line ~ /^ *\/\/ \[\/snippet\]$/) inside = 0
        if (inside) {
          if (part[parts] == "") indent = match(line, /[^ ]/) - 1
          part[parts] = part[parts] substr(line, indent + 1) "\n"
        }
        if (line ~ /^ *\/\/ \[snippet\]$/) { inside = 1; ++parts; part[parts] = "" }
      }
      close(file)
      if (status < 0) { print "snippets: " FILENAME " names " file ", which does not exist" > "/dev/stderr"; exit 1 }
      want = number > 0 ? shown[file] = number + 0 : ++shown[file]
      if (parts && want > parts) {
        print "snippets: " FILENAME " shows part " want " of " file ", which has only " parts > "/dev/stderr"
        exit 1
      }
      return "\n```cpp\n" (parts ? part[want] : all) "```\n"
    }
    # The block that stands below the marker now is left out.
    skipping && /^$/ { next }
    skipping && /^```cpp$/ { in_block = 1; skipping = 0; next }
    skipping { skipping = 0; print "" }
    in_block { if (/^```$/) in_block = 0; next }
    { print }
    /^<!-- snippet: [^ ]+( [0-9]+)? -->$/ { printf "%s", block($3, $4); skipping = 1 }
  ' "$1"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
while IFS= read -r page; do
  fill "$page" >"$work/page"
  cmp -s "$page" "$work/page" && continue
  if [ "${1:-}" = --fix ]; then
    cat "$work/page" >"$page"
    echo "snippets: $page is written anew"
  else
    diff -u "$page" "$work/page" || failed=1
  fi
done < <(grep -rl '^<!-- snippet: ' README.md docs --include='*.md')
if [ $failed -ne 0 ]; then
  echo "snippets: the code above differs from the examples; run docs/snippets.sh --fix" >&2
  exit 1
fi
echo "snippets: the code of the documentation is that of the examples"
