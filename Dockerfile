# The exporter as a sidecar: no torch, no FlashInfer, no root.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY ws_guard ws_guard
RUN python -m venv /opt/ws-guard && /opt/ws-guard/bin/pip install --no-cache-dir '.[exporter]'

FROM python:3.12-slim
COPY --from=build /opt/ws-guard /opt/ws-guard
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin ws-guard
USER 10001:10001
ENV PATH=/opt/ws-guard/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    WS_GUARD_LISTEN=*:19456
EXPOSE 19456
# Follows WS_GUARD_LISTEN no further than its default port: probes in manifests are your own.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:19456/livez', timeout=1)"]
ENTRYPOINT ["ws-guard"]
CMD ["serve"]
