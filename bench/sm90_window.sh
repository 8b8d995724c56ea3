#!/usr/bin/env bash
# Windows of sm90_forward at d128 against plain attention, another commit and a loop less, in one process.
#   bench/sm90_window.sh prepare [COMMIT]   where git is: puts the sources of COMMIT (main) into build-window/before
#   bench/sm90_window.sh                    where a Hopper GPU is: compiles and runs, a minute
set -euo pipefail
cd "$(dirname "$0")/.."
to=build-window
if [ "${1:-}" = prepare ]; then
  rm -rf $to/before
  mkdir -p $to/before
  git archive "${2:-main}" src include | tar -x -C $to/before
  exit
fi
[ -d $to/before ] || { echo "$to/before is not there: bench/sm90_window.sh prepare"; exit 1; }
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
flags=(-O3 -DNDEBUG -DATTUNE_CUDA --generate-code=arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -std=c++20 -c)
"$nvcc" "${flags[@]}" -I. -I$to/before/src -I$to/before/include -DBEFORE -DNAME=run_before -Dattune=attune_before \
  bench/sm90_window_unit.cu -o $to/before.o & before=$!
"$nvcc" "${flags[@]}" -I. -Isrc -Iinclude -DNAME=run_after -DTAIL bench/sm90_window_unit.cu -o $to/after.o & after=$!
rm -rf $to/other && mkdir -p $to/other && cp -r src include $to/other
sed -i 's/while (!fresh && stride == 1 &&/while (false \&\&/' $to/other/src/attention/forward.sm90.band.h
if cmp -s src/attention/forward.sm90.band.h $to/other/src/attention/forward.sm90.band.h; then
  echo "forward.sm90.band.h has no loop of plain steps to leave out"
  exit 1
fi
"$nvcc" "${flags[@]}" -I. -I$to/other/src -I$to/other/include -DNAME=run_other -Dattune=attune_other \
  bench/sm90_window_unit.cu -o $to/other.o & other=$!
"$nvcc" "${flags[@]}" -I. bench/sm90_window.cu -o $to/main.o & main=$!
wait $before && wait $after && wait $other && wait $main
"$nvcc" $to/before.o $to/after.o $to/other.o $to/main.o -o $to/window
[ "${1:-}" = build ] || timeout 60 $to/window
