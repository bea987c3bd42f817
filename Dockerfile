# The exporter as a sidecar: no torch, no FlashInfer, no root, for amd64 and arm64.
#
# A base of your own: any image with Python 3.10 or newer and pip, by --build-arg PYTHON_IMAGE=...
# It is built in one with the same Python and a C compiler, for the probe's hot path; without one
# (--build-arg BUILD_IMAGE=...) the probe that pods copy from here is pure Python.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG BUILD_IMAGE=python:3.12-bookworm

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY ws_guard ws_guard
RUN python3 -m venv --without-pip /opt/ws-guard \
    && python3 -m pip --python /opt/ws-guard/bin/python install --no-cache-dir '.[exporter]'

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ws-guard" \
      org.opencontainers.image.description="Watches the GPU workspace of FlashInfer's trtllm-gen attention" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/ws-guard /opt/ws-guard
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin ws-guard
USER 10001:10001
ENV PATH=/opt/ws-guard/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    WS_GUARD_LISTEN=*:19456
EXPOSE 19456
# Over plain HTTP: where WS_GUARD_TLS_CERT is set, use a check of your own.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['WS_GUARD_LISTEN'].rpartition(':')[2] + '/livez', timeout=1)"]
ENTRYPOINT ["ws-guard"]
CMD ["serve"]
