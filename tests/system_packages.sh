#!/bin/sh
# Installs the Debian packages that tests use, where that is allowed; says so where it is not.
set -u
missing=""
command -v promtool >/dev/null || missing="$missing prometheus"
command -v valgrind >/dev/null || missing="$missing valgrind"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing:$missing, and this is not root on Debian: tests that need them will say so"
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1
for package in $missing; do
  echo "installing the Debian package $package ..."
  apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 \
    || echo "apt-get could not install $package: tests that need it will say so"
done
exit 0
