# SPDX-License-Identifier: Apache-2.0
# Sourced by ./run, ./test and scripts/gpu_check: installs missing build requirements if a package manager is available.
# Nothing here is fatal: a missing requirement either stops the build later, or is left out with a stated loss. Supports
# Debian 12 and 13, Ubuntu 22.04 and 24.04; elsewhere it only checks. Everything that is installed is printed before. With
# no_install (ATTUNE_NO_INSTALL, --no-install) nothing is installed, and a missing requirement stops with a sentence.

no_install=${ATTUNE_NO_INSTALL:-}
losses=()
lose() { losses+=("$1"); echo "left out: $1"; }

have() { command -v "$1" > /dev/null; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; }  # at_least 3.25 3.22: false
cores() { nproc 2> /dev/null || echo 2; }

good_cmake() { have cmake && at_least 3.25 "$(cmake --version | sed -n '1s/[^0-9]*//p')"; }

# The first compiler that is new enough. CC and CXX, if set, are used as they are.
pick_compiler() {
  [ -z "${CXX:-}" ] || return 0
  local name
  for name in g++ g++-14 g++-13 g++-12; do
    if have "$name" && at_least 12 "$("$name" -dumpversion)"; then
      export CXX=$name CC=${name/g++/gcc}
      return
    fi
  done
  if have clang++ && at_least 14 "$(clang++ -dumpversion)"; then export CXX=clang++ CC=clang; fi
}

# Headers that the compiler cannot find, from "header package" lines.
missing_headers() {
  local line
  while read -r line; do
    set -- $line
    printf '#if !__has_include(<%s>)\nmissing %s\n#endif\n' "$1" "$2"
  done | "${CXX:-g++}" -std=c++20 -E -P -x c++ - 2> /dev/null | sed -n 's/^missing //p'
}

python_headers() {
  python3 -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2> /dev/null
}

can_fuzz() {
  have clang++ && echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -x c++ -fsanitize=fuzzer,address - -o "$1/can_fuzz" 2> /dev/null
}

# may_install WHAT...: whether it may be installed; prints it first.
may_install() {
  if [ -n "$no_install" ]; then
    echo "not installed, because of --no-install: $*"
    return 1
  fi
  echo "installing: $*"
}

apt_install() {
  [ $# -gt 0 ] || return 0
  local root=() how="as root"
  [ "$(id -u)" = 0 ] || { have sudo && root=(sudo -n) how="by sudo"; }
  have apt-get || { echo "missing: $* (no apt-get here)"; return 1; }
  may_install "$* (packages of this system, with apt-get $how)" || return 1
  if [ -z "${apt_updated:-}" ]; then
    "${root[@]}" apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 update > /dev/null 2>&1 || true
    apt_updated=1
  fi
  local name failed=0
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" \
    > /dev/null 2>&1 ||
    for name in "$@"; do  # one unknown package must not block the others
      "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$name" \
        > /dev/null 2>&1 || { echo "could not install $name"; failed=1; }
    done
  return $failed
}

# install_missing FOLDER build|test|fuzz: if everything is present, takes a tenth of a second and no network.
install_missing() {
  local folder=$1 purpose=$2 stamp=$1/.installed-$2 packages=()
  mkdir -p "$folder"
  [ -x "$folder/tools/bin/cmake" ] && PATH=$PWD/$folder/tools/bin:$PATH
  pick_compiler
  if [ "$stamp" -nt scripts/setup.sh ] && [ -n "${CXX:-}" ] && good_cmake && have ninja; then return; fi

  [ -n "${CXX:-}" ] || packages+=(g++)
  have ninja || packages+=(ninja-build)
  have cmake || packages+=(cmake)
  have pkg-config || packages+=(pkg-config)
  have python3 || packages+=(python3)
  apt_install "${packages[@]}" || true
  pick_compiler
  [ -n "${CXX:-}" ] || { apt_install g++-12 || true; pick_compiler; }  # Ubuntu 22.04 has g++ 11
  if ! good_cmake && have python3; then                                # and cmake 3.22
    apt_install python3-venv || true
    may_install "cmake 3.25 or later, from PyPI into $folder/tools" && python3 -m venv "$folder/tools" && "$folder/tools/bin/pip" -q install 'cmake>=3.25' &&
      PATH=$PWD/$folder/tools/bin:$PATH || echo "could not install cmake 3.25 or later"
  fi

  local headers="CLI/CLI.hpp libcli11-dev
nlohmann/json.hpp nlohmann-json3-dev
fmt/core.h libfmt-dev
yaml.h libyaml-dev
toml++/toml.h libtomlplusplus-dev"
  [ "$purpose" = build ] || headers+="
gtest/gtest.h libgtest-dev
rapidcheck.h librapidcheck-dev"
  packages=($(missing_headers <<< "$headers"))
  { ldconfig -p 2> /dev/null || /sbin/ldconfig -p; } | grep 'libopenblas\.so\.0' > /dev/null || packages+=(libopenblas0)
  { ldconfig -p 2> /dev/null || /sbin/ldconfig -p; } | grep 'libsqlite3\.so\.0' > /dev/null || packages+=(libsqlite3-0)
  # For the Python package.
  if [ "$purpose" != build ] && have python3 && ! python_headers; then packages+=(python3-dev); fi
  # For the tests of the MPI plug-in, which is built if MPI is present.
  if [ "$purpose" != build ] && ! { have mpirun && have mpicc; }; then packages+=(openmpi-bin libopenmpi-dev); fi
  # For the tests of signed records.
  if [ "$purpose" != build ] && ! have ssh-keygen; then packages+=(openssh-client); fi
  # For the browser tests of reports. Ubuntu's package is a stub for one that does not run in a container.
  if [ "$purpose" != build ] && ! have chromium && grep -q '^ID=debian' /etc/os-release 2> /dev/null; then
    packages+=(chromium)
  fi
  apt_install "${packages[@]}" || true
  if [ -n "$no_install" ]; then
    packages=($(missing_headers <<< "$headers"))
    [ -n "${CXX:-}" ] || packages+=(g++)
    have ninja || packages+=(ninja-build)
    good_cmake || packages+=("cmake>=3.25")
    [ ${#packages[@]} = 0 ] ||
      { echo "--no-install: the build requires ${packages[*]}, which this machine lacks"; exit 3; }
    return  # no stamp: a later run without the option installs what is optional
  fi
  if [ "$purpose" = fuzz ] && ! can_fuzz "$folder"; then
    have clang++ || apt_install clang || true
    have clang++ &&
      { can_fuzz "$folder" || apt_install "libclang-rt-$(clang++ -dumpversion | cut -d. -f1)-dev" || true; }
  fi
  touch "$stamp"
}

# The compute capability of the first GPU, as 90; empty without a GPU.
gpu_capability() {
  { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null || true; } | head -1 | tr -cd 0-9
}

# not_here LOG CAPABILITY: what this machine lacks if `attune parity --backend` ran nothing; empty if it ran, or should
# have. A build for one GPU has Hopper kernels only if that GPU is Hopper.
not_here() {
  local line
  line=$(grep -m 1 -E "^attune parity: (no backend ran: |backend '.*' is not one of)" "$1") || return 0
  case $line in
    *"no backend ran: "*": requires sm_"* | *"no backend ran: "*"cannot be opened"*) echo "${line#*ran: }" ;;
    *"backend 'sm90_"*) [ "$2" = 90 ] || echo "this build is for sm_$2" ;;
  esac
}

# good_nvcc NVCC CAPABILITY FOLDER: whether it compiles C++20 for that GPU, with a host compiler that it accepts, and
# the result links. Ubuntu 22.04's nvcc 11.5 does not.
good_nvcc() {
  printf '#include <concepts>\n__global__ void nothing() {}\nint main() {}\n' > "$3/nvcc_trial.cu"
  "$1" -std=c++20 -arch="sm_$2" "$3/nvcc_trial.cu" -o "$3/nvcc_trial" > "$3/nvcc_trial.log" 2>&1
}

# find_nvcc FOLDER [CAPABILITY]: this machine's nvcc, else the one that install_nvcc put into FOLDER; with a capability,
# the first that works for it.
find_nvcc() {
  local name
  for name in "${CUDACXX:-}" "$(command -v nvcc)" "${CUDA_HOME:-}/bin/nvcc" /usr/local/cuda/bin/nvcc \
    "$1"/cuda/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    [ -x "$name" ] && { [ -z "${2:-}" ] || good_nvcc "$name" "$2" "$1"; } && realpath -s "$name" && return
  done
  return 1
}

# fetch_nvcc FOLDER: NVIDIA's compiler and runtime from PyPI, 330 MB. The packages are complete from CUDA 13 on.
fetch_nvcc() {
  local folder=$1 name wanted=()
  have python3 && python3 -c 'import ensurepip' 2> /dev/null || apt_install python3-venv || return 1
  for name in nvcc runtime crt cccl; do wanted+=("nvidia-cuda-$name==13.0.*"); done
  may_install "nvcc 13.0 (330 MB), from PyPI into $folder/cuda" || return 1
  wanted+=("nvidia-nvvm==13.0.*" nvidia-nvtx)
  python3 -m venv "$folder/cuda" && "$folder/cuda/bin/pip" -q install "${wanted[@]}" ||
    { echo "could not install nvcc from PyPI"; return 1; }
  # nvcc searches for libraries in lib64, and CMake for libcudart.so. The packages have neither, so linking would fail.
  for name in "$folder"/cuda/lib/python3*/site-packages/nvidia/cu13; do
    ln -sfn lib "$name/lib64" && ln -sf libcudart.so.13 "$name/lib/libcudart.so"
  done
}

# install_nvcc FOLDER: the same, if the driver can run its output.
install_nvcc() {
  local driver
  driver=$(nvidia-smi 2> /dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -1)
  [ "${driver:-0}" -ge 13 ] ||
    { echo "nvcc is on PyPI from CUDA 13 on; the driver is for ${driver:-an unknown one}"; return 1; }
  fetch_nvcc "$1"
}

# choose_cuda FOLDER: how to build for the local GPU. Sets cuda_options, and cuda_says if only the CPU is used.
choose_cuda() {
  local folder=$1 capability nvcc
  cuda_options=(-DATTUNE_CUDA=OFF) cuda_says=
  capability=$(gpu_capability)
  if [ -z "$capability" ]; then
    cuda_says="no NVIDIA GPU is here"
  elif [ "$capability" -lt 75 ]; then
    cuda_says="the GPU is of compute capability $capability, and the kernels need 75 (Turing) or later"
  elif nvcc=$(find_nvcc "$folder" "$capability") ||
    { install_nvcc "$folder" && nvcc=$(find_nvcc "$folder" "$capability"); }; then
    cuda_options=(-DATTUNE_CUDA=ON -DATTUNE_CUDA_ARCHS="$capability" -DATTUNE_CUDA_PTX=OFF
      -DCMAKE_CUDA_COMPILER="$nvcc")
  elif nvcc=$(find_nvcc "$folder"); then
    cuda_says="an NVIDIA GPU is here, and $nvcc does not compile C++20 for sm_$capability ($folder/nvcc_trial.log)"
  else
    cuda_says="an NVIDIA GPU is here and nvcc is not"
  fi
}

# configure FOLDER PRESET [cmake arguments]
configure() {
  local folder=$1 preset=$2 launcher=()
  shift 2
  ! have ccache || launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
  rm -f "$folder/.configured"
  cmake --preset "$preset" -B "$folder" "${launcher[@]}" "$@" > "$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log"; return 1; }
  echo "$*" > "$folder/.configured"
}
