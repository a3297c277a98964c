# Training with gradwire: docker build --tag gradwire . (see docs/how-to/docker.md)
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
# The CPU build of PyTorch; for GPUs, an index such as https://download.pytorch.org/whl/cu130.
ARG TORCH=torch>=2.6
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3013,DL3059
RUN python3 -m venv /opt/gradwire \
    && /opt/gradwire/bin/pip install --no-cache-dir "${TORCH}" --index-url "${TORCH_INDEX}"
COPY README.md LICENSE /src/
COPY packages/gradwire /src/packages/gradwire
RUN /opt/gradwire/bin/pip install --no-cache-dir /src/packages/gradwire

FROM ${BASE}
COPY --from=build /opt/gradwire /opt/gradwire
RUN useradd --create-home --uid 1000 train
USER 1000
WORKDIR /home/train
ENV PATH=/opt/gradwire/bin:$PATH PYTHONUNBUFFERED=1
CMD ["gradwire", "doctor"]
