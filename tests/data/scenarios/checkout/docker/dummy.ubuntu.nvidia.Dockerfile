# CONTEXT {'gpu_vendor': 'NVIDIA', 'guest_os': 'UBUNTU'}
ARG BASE_DOCKER=madlite-test/base:latest
FROM $BASE_DOCKER
COPY context.txt /context.txt
