#!/bin/sh
# Installs the Debian packages that tests use, where that is allowed; says so where it is not.
set -u
command -v promtool >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "promtool is missing and this is not root on Debian: tests that need it will say so"
  exit 0
fi
echo "installing promtool (Debian package prometheus) ..."
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1
apt-get install -y -qq --no-install-recommends prometheus >/dev/null 2>&1 \
  || echo "apt-get could not install prometheus: tests that need promtool will say so"
exit 0
