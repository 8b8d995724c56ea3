#!/usr/bin/env bash
# Tests which build scripts/setup.sh selects on machines that are not present: a fake nvidia-smi describes them.
# SPDX-License-Identifier: Apache-2.0
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
# on CAPABILITY DRIVER: the selection on that machine.
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
# A driver too old for the PyPI packages: nothing is downloaded.
expect "an old driver" "$(CUDA=12.8 HAS=9.0 PATH=$place/bin:$PATH install_nvcc "$place/none")" \
  "nvcc is on PyPI from CUDA 13 on; the driver is for 12"
[ ! -e "$place/none/cuda" ] || expect "an old driver leaves" "something" "nothing"
# If nvcc is missing or unusable: the PyPI packages if the driver is new enough, else the CPU, with the reason. Python
# is faked too: it installs a working nvcc.
good_nvcc "$place/bin/nvcc" 90 "$place" || expect "an nvcc" "is not good" "good"
printf '#!/bin/sh\nexit 1\n' > "$place/bin/nvcc"
good_nvcc "$place/bin/nvcc" 90 "$place" && expect "an nvcc that fails" "is good" "not good"
printf '#!/bin/sh\ncase " $* " in *" -c "*) ;; *) exit 1 ;; esac\n' > "$place/bin/nvcc"  # without its runtime
good_nvcc "$place/bin/nvcc" 90 "$place" && expect "an nvcc that does not link" "is good" "not good"
expect "an old nvcc" "$(good_nvcc() { false; }; on 9.0 12.8 > /dev/null; echo "$cuda_says")" \
  "an NVIDIA GPU is here, and $place/bin/nvcc does not compile C++20 for sm_90 ($place/nvcc_trial.log)"
cat > "$place/bin/python3" << 'END'
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p "$3/bin"
cat > "$3/bin/pip" << PIP
#!/bin/sh
echo "\$*" > "$3/asked"
mkdir -p "$3/$cu13/bin" "$3/$cu13/lib"
printf '#!/bin/sh\n' > "$3/$cu13/bin/nvcc"
chmod +x "$3/$cu13/bin/nvcc"
PIP
chmod +x "$3/bin/pip"
END
chmod +x "$place/bin/python3"
export cu13=lib/python3.11/site-packages/nvidia/cu13
mkdir "$place/fresh"
# here CAPABILITY DRIVER: like `on`, in a separate folder and without the nvcc of the machine that runs this test.
here() {
  good_nvcc() { case $1 in "$place"/fresh/*) true ;; *) false ;; esac; }
  export HAS=$1 CUDA=$2
  CUDACXX= CUDA_HOME=$place/none PATH=$place/bin:$PATH choose_cuda "$place/fresh" > "$place/said"
}
here 8.9 13.0
expect "nvcc from PyPI" "$cuda_says" ""
expect "nvcc from PyPI is used" "${cuda_options[*]}" "-DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS=89 -DATTUNE_CUDA_PTX=OFF \
-DCMAKE_CUDA_COMPILER=$place/fresh/cuda/lib/python3.11/site-packages/nvidia/cu13/bin/nvcc"
expect "what comes from PyPI" "$(cat "$place/fresh/cuda/asked")" "-q install nvidia-cuda-nvcc==13.0.* \
nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-cccl==13.0.* nvidia-nvvm==13.0.* nvidia-nvtx"
for link in "lib64 lib" "lib/libcudart.so libcudart.so.13"; do
  expect "${link% *} of what comes from PyPI" "$(readlink "$place/fresh/cuda/$cu13/${link% *}")" "${link#* }"
done
expect "PyPI is said" "$(cat "$place/said")" "installing: nvcc 13.0 (330 MB), from PyPI into $place/fresh/cuda"
rm -r "$place/fresh/cuda"
printf '#!/bin/sh\n[ "$1 $2" != "-m venv" ]\n' > "$place/bin/python3"
here 8.9 13.0
expect "PyPI out of reach" "$(tail -1 "$place/said")" "could not install nvcc from PyPI"
expect "PyPI out of reach builds" "${cuda_options[*]}" "-DATTUNE_CUDA=OFF"
case $cuda_says in
  "an NVIDIA GPU is here"*) ;;
  *) expect "PyPI out of reach says" "$cuda_says" "an NVIDIA GPU is here ..." ;;
esac
# Backends that scripts/gpu_check skips: those for which the machine lacks something, and no others.
# lacks LINE CAPABILITY: for a run that printed LINE.
lacks() { printf '%s\n\n0 passed, 0 failed\n' "$1" > "$place/log"; not_here "$place/log" "$2"; }
for sentence in "sm80_forward: requires sm_80 or later, but Tesla T4 is sm_75" \
  "sm90_forward: requires sm_90, but Tesla T4 is sm_75" \
  "vendor_cudnn: libcudnn.so.9 cannot be opened: no such file"; do
  expect "a machine that lacks it" "$(lacks "attune parity: no backend ran: $sentence" 75)" "$sentence"
done
absent="attune parity: backend 'sm90_forward' is not one of sm80_forward, cpu_forward"
expect "Hopper's on an A100" "$(lacks "$absent" 80)" "this build is for sm_80"
expect "Hopper's on a Hopper" "$(lacks "$absent" 90)" ""
expect "another that is not built" "$(lacks "${absent/sm90/sm80}" 80)" ""
expect "one that refuses what it should take" "$(lacks "attune parity: no backend ran: sm80_forward: is tired" 80)" ""
expect "one that ran" "$(lacks "sm80_forward bf16 1 1" 80)" ""
# What is installed is printed before, and --no-install installs nothing. apt-get is faked.
cat > "$place/bin/apt-get" << 'END'
#!/bin/sh
echo "apt-get $*" >> "$APT_LOG"
END
chmod +x "$place/bin/apt-get"
export APT_LOG=$place/apt.log
expect "packages are listed first" "$(PATH=$place/bin:$PATH apt_install one two | head -1 | cut -d'(' -f1)" \
  "installing: one two "
grep -q 'install -y --no-install-recommends one two' "$APT_LOG" || expect "apt-get" "is not called" "called"
rm "$APT_LOG"
expect "with --no-install" "$(no_install=1; PATH=$place/bin:$PATH apt_install one | cut -d'(' -f1)" \
  "not installed, because of --no-install: one "
expect "nvcc with --no-install" \
  "$(no_install=1; PATH=/usr/bin:/bin fetch_nvcc "$place/none" | tail -1 | cut -d: -f1)" \
  "not installed, because of --no-install"
said=$(no_install=1; missing_headers() { echo libfmt-dev; }; PATH=$place/bin:$PATH
  install_missing "$place/asked" build | tail -1; exit "${PIPESTATUS[0]}")
expect "a requirement with --no-install" "$? $said" \
  "3 --no-install: the build requires libfmt-dev, which this machine lacks"
[ ! -e "$APT_LOG" ] || expect "--no-install" "$(cat "$APT_LOG")" "nothing"
# Requests that a build cannot satisfy. Configuration stops before it searches for nvcc.
for words in 90a native 80,90 ""; do
  cmake -S . -B "$place/configured" -G Ninja -DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS="$words" > "$place/said" 2>&1 &&
    expect "ATTUNE_CUDA_ARCHS '$words'" "configures" "an error"
  expect "ATTUNE_CUDA_ARCHS '$words'" "$(tr -s '\n ' '  ' < "$place/said" | grep -o "ATTUNE_CUDA_ARCHS is .*89;90")" \
    "ATTUNE_CUDA_ARCHS is '$words', and it takes numbers with semicolons: 75;80;89;90"
done
cmake -S . -B "$place/configured" -G Ninja -DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS="90;70" > "$place/said" 2>&1
expect "an old GPU" "$(tr -s '\n ' '  ' < "$place/said" | grep -o "ATTUNE_CUDA_ARCHS has .*on such a GPU")" \
  "ATTUNE_CUDA_ARCHS has 70, and the kernels need 75 (Turing) or later; an older GPU would need a compiler of CUDA 12, \
and textbook kernels tested on such a GPU"
# ATTUNE_CUDA=AUTO tries nvcc only where a GPU's driver is. The nvcc here records that it ran, and compiles nothing.
mkdir -p "$place/tools"
printf '#!/bin/sh\ntouch "%s"\nexit 1\n' "$place/tried" > "$place/tools/nvcc"
chmod +x "$place/tools/nvcc"
auto() {  # auto SMI: configures where nvidia-smi exits with SMI
  printf '#!/bin/sh\nexit %s\n' "$1" > "$place/tools/nvidia-smi" && chmod +x "$place/tools/nvidia-smi"
  rm -rf "$place/tried" "$place/auto"
  PATH=$place/tools:$PATH CUDACXX=$place/tools/nvcc cmake -S . -B "$place/auto" -G Ninja -DATTUNE_TOOL=OFF \
    -DATTUNE_TESTS=OFF -DATTUNE_PYTHON=OFF > "$place/said" 2>&1
  [ -e "$place/tried" ] && echo tried || grep -o "no driver of an NVIDIA GPU is here" "$place/said"
}
expect "AUTO with a driver" "$(auto 0)" tried
[ -e /dev/nvidiactl ] || [ -e /dev/nvgpu ] || [ -e /dev/nvhost-gpu ] ||
  expect "AUTO without a driver" "$(auto 9)" "no driver of an NVIDIA GPU is here"
echo "$failures failures"
[ $failures = 0 ]
