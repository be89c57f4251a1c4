# CONTEXT {'gpu_vendor': 'AMD', 'guest_os': 'UBUNTU', 'ctx_test': 'None'}
ARG BASE_DOCKER=madlite-test/base:latest
FROM $BASE_DOCKER
COPY context.txt /context.txt
ENV BUILT_FOR=0
