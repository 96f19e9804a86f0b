#!/usr/bin/env bash
# container.sh SOURCE_DIR: builds the image of one static file and runs what is in it.
set -euo pipefail
source_dir=$1
dir=$(mktemp -d)
command -v podman >/dev/null || { echo "SKIPPED: podman is not installed"; exit 0; }
[ "$(id -u)" -eq 0 ] || { echo "SKIPPED: an image that is built without root cannot be looked into"; exit 0; }
ls "$source_dir"/build/packages/*.tar.gz >/dev/null 2>&1 || { echo "SKIPPED: there are no packages: scripts/package makes them"; exit 0; }
podman() { command podman --root "$dir/root" --runroot "$dir/run" --storage-driver vfs "$@"; }
trap 'podman system reset --force >/dev/null 2>&1; rm -rf "$dir"' EXIT

podman build --isolation=chroot --target=static -t ddrun:static --build-arg "ARCH=$(uname -m)" \
  -f "$source_dir/configs/container/Containerfile" "$source_dir/build/packages"
tree=$(podman mount "$(podman create ddrun:static)")
[ "$(find "$tree" -type f -size +0 | grep -c .)" -eq 1 ] || { find "$tree" -type f; echo "FAILED: the image has more than one file"; exit 1; }
chroot "$tree" /ddrun --version
