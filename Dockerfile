# SPDX-License-Identifier: Apache-2.0
# The command and the library over Debian 12:
#   docker build -t attune . && docker run --rm attune bench --len 1024
#   docker build -t attune-cuda --build-arg CUDA=ON . && docker run --rm --gpus all attune-cuda doctor
# scripts/package_check.py dockerfile runs these steps in a chroot where docker is not.
FROM debian:12 AS build
SHELL ["/bin/bash", "-c"]
ARG CUDA=OFF
ARG COMMIT=
WORKDIR /attune
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends ca-certificates python3-venv
COPY . .
RUN . scripts/setup.sh && install_missing build-package build && if [ "$CUDA" = ON ]; then fetch_nvcc build-package; fi
RUN . scripts/setup.sh && pick_compiler && \
    if [ "$CUDA" = ON ]; then export CUDACXX="$(find_nvcc build-package 90)"; fi && \
    cmake --preset package -DATTUNE_CUDA="$CUDA" -DATTUNE_COMMIT="$COMMIT" && cmake --build build-package && \
    cmake --install build-package --prefix /opt/attune --strip

FROM debian:12-slim
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends libopenblas0 libsqlite3-0 libstdc++6 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/attune /opt/attune
ENV PATH=/opt/attune/bin:$PATH
ENTRYPOINT ["attune"]
CMD ["doctor"]
