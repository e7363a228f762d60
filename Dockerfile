# syntax=docker/dockerfile:1
# The image of `vcuda`, for amd64 and arm64. Every step runs on the machine that builds, and none on the other
# architecture: no emulation is needed. scripts/image builds both; `docker buildx build --platform` does too.
# `--target emulated` adds the emulated driver, for clusters without a GPU.
# The base has the Python that the tests run on: python:3.11-slim-bookworm, by the digest of its index. Set PYTHON_IMAGE
# to use a mirror.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

# The compiler of PyPI's ziglang, locked as the other packages are, and the target's name in /machine.
FROM --platform=$BUILDPLATFORM ${PYTHON_IMAGE} AS compiler
ARG TARGETARCH
RUN apt-get update \
 && apt-get install --yes --no-install-recommends make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-dev.lock /src/
RUN sed -n '/^ziglang==/,/[^\\]$/p' requirements-dev.lock >ziglang.lock \
 && python -m venv --without-pip .venv \
 && pip --python .venv/bin/python install --no-cache-dir --no-deps --only-binary :all: --require-hashes \
        --requirement ziglang.lock
RUN case ${TARGETARCH} in \
        amd64) echo x86_64 ;; \
        arm64) echo aarch64 ;; \
        *) echo "vcuda is built for amd64 and arm64, not for '${TARGETARCH}'" >&2; exit 1 ;; \
    esac >/machine

# What containers load, so it is built for every glibc from 2.17 on.
FROM compiler AS interposers
COPY scripts/library /src/scripts/library
COPY library /src/library
RUN scripts/library "$(cat /machine)" \
 && mkdir -p /usr/local/lib/vcuda \
 && cp "library/build/release/$(cat /machine)"/lib*.so.1 /usr/local/lib/vcuda/

# Which modules the agent imports: they, and only they, are compiled below. The root file system is read-only when the
# agent runs, and compiling would cost a second at each start.
FROM --platform=$BUILDPLATFORM ${PYTHON_IMAGE} AS imported
RUN python -m venv --without-pip /opt/vcuda
COPY requirements.lock /src/
RUN pip --python /opt/vcuda/bin/python install --no-cache-dir --no-compile --only-binary :all: --require-hashes \
        --requirement /src/requirements.lock
COPY deviceplugin /opt/vcuda/lib/python3.11/site-packages/deviceplugin
RUN PYTHONDONTWRITEBYTECODE='' /opt/vcuda/bin/python -c 'import deviceplugin.agent.run, kubernetes.client, kubernetes.config' \
 && PYTHONDONTWRITEBYTECODE='' /opt/vcuda/bin/python -c 'from deviceplugin.cli import main; main()' agent --help >/dev/null \
 && find /opt/vcuda -name '*.cpython-311.pyc' | sed 's|/__pycache__/|/|; s|\.cpython-311\.pyc$|.py|' | sort >/imported

# The emulated driver and its profiles, which only `emulated` takes. Containers load it too: every glibc from 2.28 on.
FROM compiler AS emulator
COPY --from=imported /opt/vcuda /opt/vcuda
COPY library /src/library
COPY emulator /src/emulator
COPY sandbox /src/sandbox
RUN make --directory /src/emulator CFLAGS=-O2 PYTHON=/opt/vcuda/bin/python \
        CC="/src/.venv/bin/python -m ziglang cc -target $(cat /machine)-linux-gnu.2.28"

# The packages of the target, exactly those that were tested: versions and hashes are locked, nothing is built from
# source. `unchecked-hash` keeps times out of the compiled files, and chmod the umask of the checkout.
FROM compiler AS packages
RUN python -m venv --without-pip /opt/vcuda
COPY requirements.lock /src/
RUN pip install --no-cache-dir --no-compile --only-binary :all: --require-hashes --requirement /src/requirements.lock \
        --target /opt/vcuda/lib/python3.11/site-packages --python-version 3.11 --implementation cp \
        --platform "manylinux_2_28_$(cat /machine)" --platform "manylinux2014_$(cat /machine)" \
 && rm -rf /opt/vcuda/lib/python3.11/site-packages/bin
COPY deviceplugin /opt/vcuda/lib/python3.11/site-packages/deviceplugin
COPY --from=imported /imported /src/imported
# One script, as `pip install` would make it.
RUN printf '%s\n' '#!/opt/vcuda/bin/python' 'from deviceplugin.cli import main' 'main()' >/opt/vcuda/bin/vcuda \
 && chmod 0755 /opt/vcuda/bin/vcuda \
 && chmod -R u=rwX,go=rX /opt/vcuda/lib/python3.11/site-packages/deviceplugin \
 && python -m compileall -q --invalidation-mode unchecked-hash -i /src/imported

# modprobe of the target, for nodes where the driver is installed and not loaded. What it loads beside libkmod is in the
# base. The version is fixed, as all versions here: where Debian has another, the build fails, and this is to be changed. The
# descriptions of the packages lie where scanners of images look for those that dpkg did not install.
FROM compiler AS modprobe
ARG TARGETARCH
WORKDIR /packages
RUN dpkg --add-architecture "${TARGETARCH}" \
 && apt-get update \
 && apt-get --option APT::Sandbox::User=root download \
        "kmod:${TARGETARCH}=30+20221128-1" "libkmod2:${TARGETARCH}=30+20221128-1" \
 && rm -rf /var/lib/apt/lists/*
RUN mkdir -p root/usr/sbin root/usr/lib root/usr/share/doc/libkmod2 root/var/lib/dpkg/status.d \
 && for package in kmod libkmod2; do \
        dpkg-deb --extract ${package}_*.deb unpacked \
     && dpkg-deb --field ${package}_*.deb >root/var/lib/dpkg/status.d/${package} || exit 1; \
    done \
 && cp unpacked/bin/kmod root/usr/sbin/modprobe \
 && cp --archive unpacked/usr/lib/*-linux-gnu root/usr/lib/ \
 && cp unpacked/usr/share/doc/libkmod2/copyright root/usr/share/doc/libkmod2/

# The platform is named, as buildah 1.28 would take that of the stages before.
FROM --platform=$TARGETPLATFORM ${PYTHON_IMAGE} AS agent-base
COPY --from=modprobe /packages/root /
COPY --from=packages /opt/vcuda /opt/vcuda
# Where `--library-path` looks for them; the agent puts them in front of the driver in the containers of shares.
COPY --from=interposers /usr/local/lib/vcuda /usr/local/lib/vcuda
COPY --chmod=0644 LICENSE NOTICE /usr/share/doc/vcuda/
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
COPY --from=emulator /src/emulator/build/profiles /opt/vcuda/emulator/profiles
ENV VCUDA_AGENT_DRIVER_ROOT=/opt/vcuda/emulator

FROM agent-base AS agent
