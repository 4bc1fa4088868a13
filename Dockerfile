# The four images, a target each: docker build --target operator --tag operator .
# Stages above them are shared; a target builds only those that it needs.
ARG BASE_IMAGE=python:3.11-slim

# The user has no name, and a program that asks for it fails: hence LOGNAME.
FROM ${BASE_IMAGE} AS base
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp LOGNAME=neuroshard PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# An environment with uv, to install into.
FROM base AS installer
# A file of certificates that the build machine trusts; leave it out where there is no proxy.
ARG SSL_CERT_FILE
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --quiet --no-cache-dir ${SSL_CERT_FILE:+--cert=${SSL_CERT_FILE}} uv
ENV VIRTUAL_ENV=/opt/venv
WORKDIR /build

# Dependencies in a layer of their own, so that a change of the source rebuilds only what is below. The operator makes no
# plans: what they need would be most of its image.
FROM installer AS operator-packages
ARG SSL_CERT_FILE
COPY pyproject.toml constraints.txt ./
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --constraint=constraints.txt \
    --requirements=pyproject.toml --extra=operator \
 && /opt/venv/bin/uv pip uninstall --quiet numpy scipy safetensors jinja2 markupsafe
COPY . .
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --no-deps . \
 && /opt/venv/bin/uv pip uninstall --quiet uv pip setuptools

FROM installer AS planner-packages
ARG SSL_CERT_FILE
COPY pyproject.toml constraints.txt ./
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --constraint=constraints.txt \
    --requirements=pyproject.toml
COPY . .
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --no-deps . \
 && /opt/venv/bin/uv pip uninstall --quiet uv pip setuptools

# PyTorch, FBGEMM, and TorchRec, for profiler and trainer: nodes keep these layers once.
FROM installer AS torch
ARG SSL_CERT_FILE
# cuda, or cpu for nodes without GPUs.
ARG DEVICE=cuda
# A build of torch and FBGEMM for another CUDA, such as cu126 or cu128, for nodes with older drivers; if empty, PyPI's.
ARG TORCH_BACKEND
# NCCL loads these at run time for RDMA; without them it sends over TCP sockets.
RUN if [ "$DEVICE" = cuda ]; then \
      apt-get update && apt-get install --yes --no-install-recommends libibverbs1 ibverbs-providers librdmacm1 \
      && rm -rf /var/lib/apt/lists/*; fi
# torchrec asks for fbgemm-gpu, which is right for cuda alone, so what it needs is named here. Triton and the
# sub-libraries of cuDNN are loaded on a GPU only, and are a third of the image.
COPY constraints.txt ./
RUN case "$DEVICE" in cuda) fbgemm=fbgemm-gpu ;; *) fbgemm=fbgemm-gpu-cpu ;; esac \
 && fbgemm="$fbgemm==$(sed -n 's/^fbgemm-gpu-cpu==//p' constraints.txt)" \
 && install="/opt/venv/bin/uv pip install --quiet --no-cache --constraint=constraints.txt" \
 && install="$install ${TORCH_BACKEND:+--torch-backend=${TORCH_BACKEND}}" \
 && if [ "$DEVICE" = cuda ]; then $install nvidia-ml-py; fi \
 && $install torch numpy iopath pyre-extensions tensordict torchmetrics tqdm \
 && $install --no-deps "$fbgemm" torchrec \
 && if [ "$DEVICE" = cpu ]; then \
      cd /opt/venv/lib/python3*/site-packages && rm -rf triton nvidia/cudnn/lib/libcudnn_*; fi
COPY pyproject.toml ./

# The operator: watches jobs and makes their pods. No torch, no numpy.
FROM base AS operator
COPY --from=operator-packages /opt/venv /opt/venv
USER 65532:65532
ENTRYPOINT ["python", "-m", "neuroshard_operator"]

# The planner: from a request and a bundle of cost models to a plan. NumPy, no torch.
FROM base AS planner
COPY --from=planner-packages /opt/venv /opt/venv
USER 65532:65532
ENTRYPOINT ["neuroshard"]

# The profiler: measures a device and trains cost models of it.
FROM torch AS profiler
ARG SSL_CERT_FILE
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --constraint=constraints.txt \
    --requirements=pyproject.toml --extra=profiler
COPY . .
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --no-deps .
WORKDIR /
USER 65532:65532
ENTRYPOINT ["python", "-m", "neuroshard_profiler"]

# The trainer: torchrun workers that train under a plan. It has what a plan needs, since a trainer of your own may plan by
# the drop-in.
FROM torch AS trainer
ARG SSL_CERT_FILE
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --constraint=constraints.txt \
    --requirements=pyproject.toml --extra=trainer
COPY . .
RUN /opt/venv/bin/uv pip install --quiet --no-cache --compile-bytecode --no-deps .
WORKDIR /
USER 65532:65532
ENTRYPOINT ["torchrun"]
