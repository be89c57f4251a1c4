#!/usr/bin/env bash
# kubernetes.sh FOLDER: build Kubernetes' control plane of Debian's source package into FOLDER, once; nothing is installed.
#
# FOLDER has kube-apiserver, kube-controller-manager, kube-scheduler and etcd afterwards.  Needs apt-get and dpkg of
# Debian 12 (no root, and apt's own sources stay as they are), 4 GiB of disk while it builds, and some six minutes of
# processor time.  The package has one file that Debian's own build, of kubectl alone, does not need: it is generated.
set -euo pipefail
into=${1:?folder for the programs}
[ -x "$into/kube-apiserver" ] && [ -x "$into/etcd" ] && exit 0
for program in apt-get dpkg tar; do
  command -v "$program" >/dev/null || { echo "error: $program is missing; this builds from Debian 12's packages" >&2; exit 1; }
done
mkdir -p "$(dirname "$into")"
work=$into.building
free=$(df --output=avail -k "$(dirname "$into")" | tail -1)
[ "$free" -gt $((4 << 20)) ] || { echo "error: $((free >> 10)) MiB are free in $(dirname "$into"), and the build needs 4096" >&2; exit 1; }
exec 9>"$into.lock"
flock 9
[ -x "$into/kube-apiserver" ] && exit 0 # another one was faster
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,packages,root,go/src/k8s.io,done}

cat >"$work/debian.sources" <<SOURCES
Types: deb deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
cat >"$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/debian.sources";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "";
CONF
export APT_CONFIG=$work/apt.conf
cd "$work/packages"
apt-get update -qq
apt-get download -qq golang-1.19-go golang-1.19-src etcd-server
apt-get source -qq --download-only kubernetes
for package in ./*.deb; do dpkg -x "$package" "$work/root"; done
tar -xzf kubernetes_*.orig.tar.gz -C "$work/go/src/k8s.io"
tree=$(echo "$work"/go/src/k8s.io/kubernetes-*)
version=v${tree##*-}
mv "$tree" "$work/go/src/k8s.io/kubernetes"
cd "$work/go/src/k8s.io/kubernetes"
export GOROOT=$work/root/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/go-cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS='' GOTMPDIR=$work
go() { nice -n 10 "$GOROOT/bin/go" "$@"; }

go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
mapfile -t typed < <(grep -rl --include='*.go' '^// +k8s:openapi-gen=true' pkg staging/src |
  grep -v -e /code-generator/ -e /sample-apiserver/ -e _test.go -e /testdata/ | xargs -n1 dirname | LC_ALL=C sort -u |
  sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^pkg/#k8s.io/kubernetes/pkg/#')
nice -n 10 "$work/openapi-gen" --logtostderr -i "$(IFS=,; echo "${typed[*]}")" -p k8s.io/kubernetes/pkg/generated/openapi \
  -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations"

flags="-s -w -X k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion=$version"
for program in kube-apiserver kube-controller-manager kube-scheduler; do
  go build -ldflags "$flags" -o "$work/done/$program" "./cmd/$program"
done
cp "$work/root/usr/bin/etcd" "$work/done/etcd"
rm -rf "$into"
mv "$work/done" "$into"
