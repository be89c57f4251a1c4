#!/bin/sh
# elsewhere.sh MACHINE COMMAND…: run a command that sees the /sys and /dev of a stand-in machine, and nothing of the GPUs
# of this one: no device file, driver, ROCm, management library or tool.  For a mount namespace of its own alone.
set -eu
machine=$1
shift

if [ -d /proc/driver/nvidia ]; then mount -t tmpfs none /proc/driver/nvidia; fi
for rocm in /opt/rocm*; do
  if [ -d "$rocm" ]; then mount -t tmpfs none "$rocm"; fi
done

hide() { # a path that is there; what is in its place can neither be run nor loaded
  if [ -e "$1" ]; then mount --bind /dev/null "$(readlink -f "$1")"; fi
}
PATH=$PATH:/usr/sbin:/sbin ldconfig -p | sed -n 's/.*libnvidia-ml.* => //p' | while read -r library; do
  hide "$library"
done
echo "$PATH:/usr/bin:/usr/local/bin:/usr/lib/wsl/lib" | tr : '\n' | while read -r folder; do
  [ "$folder" != "$machine/bin" ] || continue
  for tool in amd-smi rocm-smi rocminfo hipconfig nvidia-smi; do hide "$folder/$tool"; done
done

dev=$machine/root/dev # with the device files that every machine has
for name in null zero full random urandom tty fuse; do
  [ -e "/dev/$name" ] || continue
  touch "$dev/$name"
  mount --bind "/dev/$name" "$dev/$name"
done
for name in pts shm; do
  [ -d "/dev/$name" ] || continue
  mkdir -p "$dev/$name"
  mount --bind "/dev/$name" "$dev/$name"
done
ln -sfn /proc/self/fd "$dev/fd"
ln -sfn pts/ptmx "$dev/ptmx"
mount --rbind "$dev" /dev
mount --bind "$machine/root/sys" /sys
exec "$@"
