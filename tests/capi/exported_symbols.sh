#!/bin/sh
# exported_symbols.sh LIBRARY HEADER: checks that the library exports exactly the functions that the header declares.
# SPDX-License-Identifier: Apache-2.0
set -eu
library=$1 header=$2
command -v nm > /dev/null || { echo "nm is not here"; exit 77; }
exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort)
# Symbols of the sanitizer run-time libraries are ignored.
exported=$(echo "$exported" | grep -v -E '^__(asan|odr_asan|ubsan|tsan|start|stop)_' || true)
declared=$(sed -n 's/^ATTUNE_API .*[ *]\(attune_[a-z_]*\)(.*/\1/p' "$header" | sort)
if [ -z "$declared" ] || [ "$exported" != "$declared" ]; then
  echo "exported by $library:"
  echo "$exported"
  echo "declared in $header:"
  echo "$declared"
  exit 1
fi
