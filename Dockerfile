# Every image of HAMi. `make images` builds them all; one of them, from the top of the project:
#   docker build --build-arg SERVICE=webhook --tag "hami-webhook:$(cat VERSION)" .
# SERVICE: scheduler, webhook, metrics, node-agent, or tools (what docker-compose.yml types with).
# --target node-agent-fakegpu, with SERVICE=node-agent: the agent over the stand-in driver.
# BASE needs Python >= 3.11 with venv and glibc; NATIVE builds the C parts and may be any base with
# glibc: libvgpu.so needs GLIBC_2.17 at most, or its build fails with the reason
# (native/libvgpu/check-needs). --secret id=pip,src=pip.conf names where packages come from when it is
# not the default. docs/compose.md has what is in an image and why.
ARG BASE=python:3.11-slim-bookworm
ARG NATIVE=python:3.11-slim-bookworm
ARG SERVICE

# pip and the builders stay here. Three folders, from what seldom changes to what often does: the
# environment with what all services need, a service's own packages, our code.
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python3 -m venv /build && python3 -m venv --without-pip /app/venv && \
    printf '/app/packages\n/app/service\n' > "$(echo /app/venv/lib/python3*/site-packages)/hami.pth"
COPY requirements/build.txt requirements/
RUN --mount=type=cache,id=hami-pip,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    /build/bin/pip install --require-hashes -r requirements/build.txt

FROM build AS common
COPY scripts/install-in-image scripts/
COPY requirements/common.txt requirements/
RUN --mount=type=cache,id=hami-pip,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    scripts/install-in-image /app/venv --require-hashes -r requirements/common.txt

FROM common AS packages
ARG SERVICE
COPY requirements/${SERVICE}.txt requirements/
RUN --mount=type=cache,id=hami-pip,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    grep -v '^-r ' requirements/${SERVICE}.txt > requirements/own.txt && \
    scripts/install-in-image /app/packages --require-hashes -r requirements/own.txt

FROM build AS hamicommon
COPY LICENSE VERSION ./
COPY libs/hamicommon libs/hamicommon
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./libs/hamicommon

FROM packages AS service-members
COPY LICENSE VERSION ./
COPY --from=hamicommon /wheels /wheels
COPY services/${SERVICE} services/${SERVICE}
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels ./services/${SERVICE}

FROM packages AS tools-members
COPY LICENSE VERSION ./
COPY --from=hamicommon /wheels /wheels
COPY libs libs
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels \
        ./libs/kubelocal ./libs/hamilocal ./libs/hamireplay ./libs/hamictl

# The bill of materials is a list of what is installed, so it can't differ from it.
FROM service-members AS service-code
RUN scripts/install-in-image /app/service --no-index /wheels/*.whl && \
    /build/bin/cyclonedx-py environment --output-reproducible --output-file /app/sbom.cdx.json \
        /app/venv/bin/python

FROM tools-members AS tools-code
RUN scripts/install-in-image /app/service --no-index /wheels/*.whl && \
    /build/bin/cyclonedx-py environment --output-reproducible --output-file /app/sbom.cdx.json \
        /app/venv/bin/python

FROM ${NATIVE} AS native
RUN command -v cc make readelf >/dev/null || \
    { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev make; }
COPY native /src/native
RUN make -C /src/native

FROM ${BASE} AS runtime
COPY --from=common /app/venv /app/venv
ENV PATH=/app/service/bin:/app/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /app
USER 65532:65532

FROM runtime AS service
COPY --from=packages /app/packages /app/packages
COPY --from=service-code /app/service /app/service
COPY --from=service-code /app/sbom.cdx.json /app/
ARG SERVICE
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="hami-${SERVICE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.licenses="Apache-2.0"

# Also runs the migrations: python -m hamicommon.ledger /app/migrations
FROM service AS scheduler
COPY migrations /app/migrations
ENV HAMI_SCHEDULER_PROBE_BIND=0.0.0.0:9397
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD python -m hamicommon.process.healthcheck "$HAMI_SCHEDULER_PROBE_BIND"
CMD ["hami-scheduler"]

FROM service AS webhook
ENV HAMI_WEBHOOK_PROBE_BIND=0.0.0.0:9396
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD python -m hamicommon.process.healthcheck "$HAMI_WEBHOOK_PROBE_BIND"
CMD ["hami-webhook"]

FROM service AS metrics
# As the node-agent below: texts of pages and messages are a megabyte each.
ENV MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072 \
    HAMI_METRICS_HTTP_BIND=0.0.0.0:9395
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD python -m hamicommon.process.healthcheck "$HAMI_METRICS_HTTP_BIND"
CMD ["hami-metrics"]

# Two heaps for all threads: each thread's own would keep what it once needed. Large buffers (the
# text of a scrape, the library) never come from them, so they go back to the system: 2 MB.
# Root, because the kubelet's sockets and the host folders are root's; of root's capabilities it needs
# CHOWN, DAC_OVERRIDE and FOWNER (k8s/base/node-agent.yaml).
FROM service AS node-agent
COPY --from=native /src/native/libvgpu/build/libvgpu.so /opt/hami/libvgpu.so
ENV MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072 \
    HAMI_NODE_AGENT_METRICS_BIND=:9394
USER 0:0
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD python -m hamicommon.process.healthcheck "$HAMI_NODE_AGENT_METRICS_BIND"
CMD ["hami-node-agent"]

# For machines without a GPU: the same agent over the stand-in driver.
FROM node-agent AS node-agent-fakegpu
COPY --from=native /src/native/fakegpu/build /opt/hami/fakegpu
ENV LD_LIBRARY_PATH=/opt/hami/fakegpu

# What docker-compose.yml types with, and its emulated Kubernetes. Nothing of it belongs into production.
FROM runtime AS tools
COPY --from=packages /app/packages /app/packages
COPY --from=native /src/native /app/native
COPY migrations /app/migrations
COPY examples /app/examples
COPY k8s/compose/prepare.py /app/compose/
COPY --from=tools-code /app/service /app/service
COPY --from=tools-code /app/sbom.cdx.json /app/
# A volume takes the owner of the folder that it covers.
USER 0:0
RUN mkdir -p /shared /data /nats /node && chown 65532:65532 /shared /data /nats
USER 65532:65532

FROM ${SERVICE}
