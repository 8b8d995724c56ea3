#!/bin/sh
# Wrapper around nvcc: writes its output next to the object, as <object>.ptxas, and shows it only if it matters.
# SPDX-License-Identifier: Apache-2.0
[ -n "$1" ] || shift  # without a launcher, CMake passes an empty first argument
before= object=
for word in "$@"; do
  [ "$before" != -o ] || object=$word
  before=$word
done
case $object in
  *.o) ;;
  *) exec "$@" ;;
esac
"$@" > "$object.ptxas" 2>&1
status=$?
if [ $status != 0 ]; then cat "$object.ptxas" >&2; else grep -E 'warning|C75[0-9][0-9]' "$object.ptxas" >&2; fi
exit $status
