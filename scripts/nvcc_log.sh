#!/bin/sh
# Stands before nvcc: keeps what it says beside the object, as <object>.ptxas, and shows it only where it matters.
[ -n "$1" ] || shift  # CMake puts an empty launcher before it where there is none
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
