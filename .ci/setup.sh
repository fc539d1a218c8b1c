#!/usr/bin/env bash
# Installs the packages that are missing and says which: those that building and testing need, or those that the
# arguments name. The names are those of Debian 12 and 13, and should be those of Ubuntu 24.04 with its component
# universe, which was not tried. Returns at once if nothing is missing. examples/quickstart.sh and the scripts of tests/
# call it.
set -euo pipefail

packages=(g++ cmake ninja-build libdnnl-dev libopenmpi-dev openmpi-bin libfmt-dev nlohmann-json3-dev
          libcli11-dev libgtest-dev libboost-context-dev zlib1g-dev libzstd-dev libjpeg-dev
          libpng-dev iproute2 util-linux python3)
[ $# -gt 0 ] && packages=("$@")

if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not a Debian system; install what corresponds to: ${packages[*]}" >&2
  exit 1
fi
missing=()
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
for package in "${packages[@]}"; do
  grep -qx "installed $package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing packages, and neither root nor sudo to install them. Ask an administrator for:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
