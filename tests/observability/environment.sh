#!/bin/sh
# Builds the environment of `make test-observability`: environment.sh DIRECTORY [PYTHON]
#
# Debian packages where this is root on Debian, Python and Node packages into DIRECTORY. What cannot
# be had is said, and the tests that need it skip with that reason.
set -u
where=$1
python=${2:-python3}
here=$(dirname "$0")
missing=0

say() {
  echo "$1: tests that need it will say so"
  missing=1
}

# debian COMMAND PACKAGE...: the packages that bring a command.
debian() {
  command -v "$1" >/dev/null && return
  command=$1
  shift
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "$command is missing and this is not root on Debian"
    return
  fi
  echo "installing $* ..."
  [ -n "${updated:-}" ] || apt-get update -qq >/dev/null 2>&1
  updated=1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
    >/dev/null 2>&1 || say "apt-get could not install $*"
}
debian promtool prometheus
debian prometheus-alertmanager prometheus-alertmanager
debian chromium chromium
debian buildah buildah
debian mmdebstrap mmdebstrap
debian node nodejs
debian npm npm

# As make would: nothing more to do while what it was built from is older.
if [ -e "$where/.installed" ] && [ -z "$(find "$here/environment.sh" "$here/requirements.txt" \
  "$here/node/package.json" -newer "$where/.installed")" ]; then
  exit 0
fi

echo "installing what judges manifests, dashboards and pages into $where, a minute or two ..."
"$python" -m venv "$where" &&
  "$where/bin/python" -m pip install --quiet --disable-pip-version-check \
    -r "$here/requirements.txt" || say "the Python packages could not be installed"
# Without scripts: playwright-core would do nothing in its own, and Chromium is Debian's.
mkdir -p "$where/node" && cp "$here/node/package.json" "$where/node/" &&
  npm install --prefix "$where/node" --silent --no-audit --no-fund --no-package-lock \
    --legacy-peer-deps --ignore-scripts || say "the Node packages could not be installed"
[ "$missing" = 1 ] || touch "$where/.installed"
exit 0
