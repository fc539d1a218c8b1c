#!/usr/bin/env bash
# Builds the API reference of the public headers as HTML in build/docs, from their `///` comments. Fails where a class,
# a struct, an enumeration, an alias or a free function has no comment. Members may be described by the comment of
# their class: the script only counts those that have no comment of their own.
#   docs/api.sh            installs doxygen where it is missing (as root on Debian), then builds
#   docs/api.sh --offline  installs nothing; without doxygen it exits with 77, which ctest counts as skipped
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v doxygen >/dev/null; then
  if [ "${1:-}" = --offline ]; then
    echo "api: the API reference is not checked, because doxygen is missing. Install it: apt-get install doxygen" >&2
    exit 77
  fi
  .ci/setup.sh doxygen
fi

out=build/docs
rm -rf "$out"
mkdir -p "$out"
{
  cat docs/Doxyfile
  echo "INPUT = docs/api.dox $(cmake -P cmake/public_headers.cmake | tr '\n' ' ')"
  echo "OUTPUT_DIRECTORY = $out"
  echo "WARN_LOGFILE = $out/warnings.txt"
} | doxygen -

# Operators and constants explain themselves. Specialisations are described by their template, structs of options by the
# class or function that takes them.
exempt='Member .* of (class|struct|union) .* is not documented|Member operator[^ ]*[(]|[(]variable[)]'
exempt+='|Compound .*(Options|<.*>) is not documented'
sed "s#$PWD/##" "$out/warnings.txt" | sort -u >"$out/all_warnings.txt"
members=$(grep -cE "$exempt" "$out/all_warnings.txt" || true)
if grep -vE "$exempt" "$out/all_warnings.txt"; then
  echo "api: the lines above are names without a /// comment, or comments that doxygen does not understand" >&2
  exit 1
fi
echo "api: build/docs/index.html describes every public class and function; $members members rely on their class's comment"
