#!/bin/sh
# installed_test.sh CMAKE BUILD_DIR SOURCE_DIR C_COMPILER CXX_COMPILER: installs into a new folder, moves the folder,
# and builds and runs the examples against it, with find_package and with pkg-config.
# SPDX-License-Identifier: Apache-2.0
set -eu
cmake=$1 build=$2 source=$3 cc=$4 cxx=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" --component library > "$work/install.log" ||
  { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/attune"

"$cmake" -S "$source/examples" -B "$work/examples" -DCMAKE_PREFIX_PATH="$work/attune" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/examples" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
for example in attend_c attend_cpp decode_paged decode_cache train_layer; do
  echo "$example, by find_package:"
  "$work/examples/$example"
done

command -v pkg-config > /dev/null || { echo "pkg-config is not here: only find_package was tried"; exit 0; }
PKG_CONFIG_PATH=$(dirname "$(find "$work/attune" -name attune.pc)")
export PKG_CONFIG_PATH
library=$(pkg-config --variable=libdir attune)
LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
"$cc" -std=c11 "$source/examples/attend.c" $(pkg-config --cflags --libs attune) -lm -o "$work/attend_c"
"$cxx" -std=c++20 "$source/examples/decode_paged.cpp" $(pkg-config --cflags --libs attune) -o "$work/decode_paged"
for example in attend_c decode_paged; do
  echo "$example, by pkg-config $(pkg-config --modversion attune):"
  "$work/$example"
done
