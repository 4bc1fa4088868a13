# PyTorch, to see torchrun find its peers over the pod network, and a large image shared by all nodes.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}
# A file of certificates that the build machine trusts; Docker users leave it out.
ARG SSL_CERT_FILE
ARG TORCH_VERSION=2.14.1
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --quiet --no-cache-dir ${SSL_CERT_FILE:+--cert=${SSL_CERT_FILE}} uv \
 && /opt/venv/bin/uv pip install --quiet --no-cache --python=/opt/venv/bin/python torch==${TORCH_VERSION} numpy
COPY ranks.py /ranks.py
USER 65532:65532
ENV HOME=/tmp PATH=/opt/venv/bin:$PATH
ENTRYPOINT ["torchrun"]
