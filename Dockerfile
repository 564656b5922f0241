# One image for server and nodes; docs/deployment.md says how it is built and started. The base can be named by a digest:
# docker build --build-arg BASE=python:3.12-slim-bookworm@sha256:... (the one that you have checked).
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
COPY requirements/linux-x86_64-py3.12.txt packages.txt
# You write it before the build: torch==... --hash=sha256:... of the build for this host (docs/deployment.md).
COPY torch.txt torch.txt
RUN python -m venv /opt/fedmf/.venv \
    && grep '^setuptools==' packages.txt > first.txt \
    && /opt/fedmf/.venv/bin/pip install --require-hashes --no-deps -r first.txt \
    && /opt/fedmf/.venv/bin/pip install --require-hashes --no-deps --no-build-isolation -r packages.txt \
    && /opt/fedmf/.venv/bin/pip install --require-hashes --no-deps -r torch.txt
# What `flwr run /opt/fedmf/source` bundles is what is installed.
COPY pyproject.toml setup.py README.md LICENSE /opt/fedmf/source/
COPY fedmf /opt/fedmf/source/fedmf
COPY server /opt/fedmf/source/server
COPY client /opt/fedmf/source/client
COPY experiments /opt/fedmf/source/experiments
COPY conf /opt/fedmf/source/conf
RUN cp -r /opt/fedmf/source copy \
    && /opt/fedmf/.venv/bin/pip install --no-deps --no-index --no-build-isolation ./copy

FROM ${BASE}
RUN groupadd --system --gid 10001 fedmf \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/fedmf --shell /usr/sbin/nologin fedmf \
    && install -d -o fedmf -g fedmf -m 0700 /var/lib/fedmf /var/lib/fedmf-counter /run/fedmf
COPY --from=build /opt/fedmf /opt/fedmf
ENV PATH=/opt/fedmf/.venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    FLWR_HOME=/var/lib/fedmf/flwr \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FEDMF_PORT=8000
WORKDIR /var/lib/fedmf
USER 10001:10001
# Whether Flower listens: 8000 for a SuperLink, FEDMF_PORT=9094 for a SuperNode.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['FEDMF_PORT'])), 3)"]
CMD ["fedmf", "--help"]
