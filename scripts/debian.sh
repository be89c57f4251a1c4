#!/usr/bin/env bash
# debian.sh: install what the tests need of Debian's packages; only as root, and only what is missing.
set -euo pipefail
missing=()
need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2"); }
need dockerd docker.io
need podman podman
need catatonit catatonit
need debootstrap debootstrap
need docker-registry docker-registry
need shellcheck shellcheck
need slurmctld slurm-wlm
need munged munge
need git git
need sqlite3 sqlite3
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
need chromium chromium
need chromedriver chromium-driver
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "warning: not installed: ${missing[*]}; tests that need them are skipped" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/postgresql-common # the tests make a server of their own: none is wanted beside it
[ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
