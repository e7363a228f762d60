# Stands for the Dockerfile's base where no registry can be reached; `build` makes what is copied.
FROM scratch
ADD root.tar /
COPY pip.conf /etc/pip.conf
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
