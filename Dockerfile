# syntax=docker/dockerfile:1
# The image of `vcuda`. Its base has the Python that the tests run on; set PYTHON_IMAGE to pin a digest or to use a
# mirror. `--target emulated` adds the emulated driver, for clusters without a GPU.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# What containers load, so it is built for every glibc from 2.17 on: by the compiler of PyPI's ziglang, locked as the
# other packages are.
FROM ${PYTHON_IMAGE} AS interposers
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-dev.lock /src/
RUN sed -n '/^ziglang==/,/[^\\]$/p' requirements-dev.lock >ziglang.lock \
 && python -m venv --without-pip .venv \
 && pip --python .venv/bin/python install --no-cache-dir --no-deps --only-binary :all: --require-hashes \
        --requirement ziglang.lock
COPY scripts/library /src/scripts/library
COPY library /src/library
RUN scripts/library "$(uname -m)" \
 && mkdir -p /usr/local/lib/vcuda \
 && cp "library/build/release/$(uname -m)"/lib*.so.1 /usr/local/lib/vcuda/

# The emulated driver, which only `emulated` takes.
FROM ${PYTHON_IMAGE} AS emulator
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
COPY library /src/library
COPY emulator /src/emulator
RUN make --directory /src/emulator

# The packages, exactly those that were tested: versions and hashes are locked, and nothing is built from source.
FROM ${PYTHON_IMAGE} AS packages
RUN python -m venv --without-pip /opt/vcuda
COPY requirements.lock /src/
RUN pip --python /opt/vcuda/bin/python install --no-cache-dir --no-compile --only-binary :all: --require-hashes \
        --requirement /src/requirements.lock
COPY deviceplugin /opt/vcuda/lib/python3.11/site-packages/deviceplugin
# One script, as `pip install` would make it. Then the agent is imported once, so that the modules it needs, and only
# they, are compiled: the root file system is read-only when it runs, and compiling would cost a second at each start.
RUN printf '%s\n' '#!/opt/vcuda/bin/python' 'from deviceplugin.cli import main' 'main()' >/opt/vcuda/bin/vcuda \
 && chmod 0755 /opt/vcuda/bin/vcuda \
 && PYTHONDONTWRITEBYTECODE='' /opt/vcuda/bin/python -c 'import deviceplugin.agent.run, kubernetes.client, kubernetes.config' \
 && /opt/vcuda/bin/vcuda agent --help >/dev/null

FROM ${PYTHON_IMAGE} AS agent-base
# modprobe, for nodes where the driver is installed and not loaded.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends kmod \
 && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/vcuda /opt/vcuda
# Where `--library-path` looks for them; the agent puts them in front of the driver in the containers of shares.
COPY --from=interposers /usr/local/lib/vcuda /usr/local/lib/vcuda
COPY LICENSE NOTICE /usr/share/doc/vcuda/
LABEL org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/vcuda/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Nobody in particular: `vcuda place`, `vcuda config print` and whatever else only computes. `vcuda agent` must be root,
# because kubelet's directories and sockets are root's; daemonset/ says so there, with what else it needs and why.
USER 65532:65532
ENTRYPOINT ["vcuda"]

FROM agent-base AS emulated
# A driver root: the agent loads NVML from it and mirrors it for containers.
COPY --from=emulator /src/emulator/build/libnvidia-ml.so.1 /src/emulator/build/libcuda.so.1 \
     /opt/vcuda/emulator/usr/lib64/
COPY --from=emulator /src/emulator/build/vcuda-emulator /opt/vcuda/emulator/usr/bin/
COPY --from=emulator /src/emulator/profiles /opt/vcuda/emulator/profiles
ENV VCUDA_AGENT_NVML_LIBRARY=/opt/vcuda/emulator/usr/lib64/libnvidia-ml.so.1 \
    VCUDA_AGENT_DRIVER_ROOT=/opt/vcuda/emulator

FROM agent-base AS agent
