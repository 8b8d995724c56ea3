#!/usr/bin/env bash
# What scripts/setup.sh decides to build for, on machines that are not here: a made-up nvidia-smi says what they have.
set -u
cd "$(dirname "$0")/../.."
. scripts/setup.sh
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/bin" "$place/none"
cat > "$place/bin/nvidia-smi" << 'END'
#!/bin/sh
case "$*" in
  *compute_cap*) [ -n "$HAS" ] || exit 9; echo "$HAS" ;;
  *) echo "| NVIDIA-SMI 580.10  Driver Version: 580.10  CUDA Version: $CUDA |" ;;
esac
END
printf '#!/bin/sh\n' > "$place/bin/nvcc"
chmod +x "$place/bin/nvidia-smi" "$place/bin/nvcc"

failures=0
# expect WHAT GOT WANTED
expect() { [ "$2" = "$3" ] || { echo "FAIL $1: '$2', not '$3'"; failures=$((failures + 1)); }; }
# on CAPABILITY DRIVER: the choice there.
on() {
  export HAS=$1 CUDA=$2
  CUDACXX=$place/bin/nvcc PATH=$place/bin:$PATH choose_cuda "$place"
}

on '' 13.0
expect "no GPU" "$cuda_says" "no NVIDIA GPU is here"
expect "no GPU builds" "${cuda_options[*]}" "-DATTUNE_CUDA=OFF"
expect "no GPU, errors stop" "$(set -euo pipefail; on '' 13.0; echo "$cuda_says")" "no NVIDIA GPU is here"
on 7.0 13.0
expect "Volta" "$cuda_says" "the GPU is of compute capability 70, and the kernels need 75 (Turing) or later"
expect "Volta builds" "${cuda_options[*]}" "-DATTUNE_CUDA=OFF"
for pair in 7.5:75 8.0:80 8.6:86 9.0:90 12.0:120; do
  on "${pair%:*}" 13.0
  expect "${pair%:*}" "$cuda_says" ""
  expect "${pair%:*} builds" "${cuda_options[*]}" \
    "-DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS=${pair#*:} -DATTUNE_CUDA_PTX=OFF -DCMAKE_CUDA_COMPILER=$place/bin/nvcc"
done
# A driver that is too old for the packages of PyPI: nothing is fetched.
expect "an old driver" "$(CUDA=12.8 HAS=9.0 PATH=$place/bin:$PATH install_nvcc "$place/none")" \
  "nvcc is on PyPI from CUDA 13 on; the driver is for 12"
[ ! -e "$place/none/cuda" ] || expect "an old driver leaves" "something" "nothing"
echo "$failures failures"
[ $failures = 0 ]
