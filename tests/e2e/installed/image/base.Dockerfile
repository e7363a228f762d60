# Stands for python:3.11-slim-bookworm where no registry can be reached; `build` makes what is copied.
FROM scratch
ADD root.tar /
COPY pip.conf /etc/pip.conf
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
RUN ln -s /usr/bin/python3 /usr/local/bin/python && ln -s /usr/bin/pip3 /usr/local/bin/pip
