#!/bin/sh
# Builds the environment of `make test-vllm`: environment.sh DIRECTORY [PYTHON]
#
# Real vLLM without a GPU, and beside it the Python sources of another release and of SGLang. Where
# the disk is too small it says so and builds nothing: the tests then skip with that reason.
set -eu
where=$1
python=${2:-python3}
here=$(dirname "$0")
needed_gib=10
vllm_before_sizing=0.26.0
sglang=0.5.23

# As make would: nothing to do while what it was built from is older.
if [ -e "$where/.installed" ] &&
  [ -z "$(find "$here/environment.sh" "$here/requirements.txt" -newer "$where/.installed")" ]; then
  exit 0
fi

free_gib=$(df -Pk "$(dirname "$where")" | awk 'NR == 2 { print int($4 / 1048576) }')
if [ "$free_gib" -lt "$needed_gib" ]; then
  echo "the tests with vLLM need $needed_gib GiB of disk, $free_gib are free: they will be skipped"
  exit 0
fi

echo "installing vLLM without a GPU into $where, some minutes ..."
"$python" -m venv "$where"
pip="$where/bin/python -m pip --quiet --disable-pip-version-check"
$pip install --no-deps -r "$here/requirements.txt"

# unpack NAME RELEASE: a wheel without its binaries, into a directory of its own.
unpack() {
  rm -rf "$where/wheels"
  $pip download --no-deps --dest "$where/wheels" "$1==$2"
  "$where/bin/python" - "$where/wheels" "$where/$1-$2" <<'PROGRAM'
import pathlib, sys, zipfile

wheels, target = map(pathlib.Path, sys.argv[1:])
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        kept = [name for name in archive.namelist() if not name.endswith(".so")]
        archive.extractall(target, kept)
PROGRAM
  rm -rf "$where/wheels"
}
unpack vllm "$vllm_before_sizing"
unpack sglang "$sglang"
# Both engines as another interpreter sees installed packages, with nothing else of this environment.
mkdir -p "$where/sources"
ln -sfn "$(echo "$PWD/$where"/lib/python3*/site-packages/vllm)" "$where/sources/vllm"
ln -sfn "$(echo "$PWD/$where"/lib/python3*/site-packages/vllm-*.dist-info)" \
  "$where/sources/$(basename "$where"/lib/python3*/site-packages/vllm-*.dist-info)"
ln -sfn "$PWD/$where/sglang-$sglang/sglang" "$where/sources/sglang"
ln -sfn "$PWD/$where/sglang-$sglang/sglang-$sglang.dist-info" \
  "$where/sources/sglang-$sglang.dist-info"
touch "$where/.installed"
