#!/usr/bin/env bash
# debian.sh SOURCE_DIR CODENAME: in a Debian with nothing installed, the packages of build/packages, and the wheel that
# pip makes of the source distribution. Takes minutes.
set -euo pipefail
source_dir=$1 codename=$2
DDRUN_DEBIAN_DIR=$(mktemp -d /var/tmp/ddrun-packages-XXXXXX)
export DDRUN_DEBIAN_DIR DDRUN_SCRIPT_LOGS=$DDRUN_DEBIAN_DIR/logs
trap 'rm -rf --one-file-system "$DDRUN_DEBIAN_DIR"' EXIT
. "$source_dir/scripts/lib/common.sh"
. "$source_dir/scripts/lib/packages.sh"
. "$source_dir/scripts/lib/debian.sh"
fail() { echo "FAILED: $*"; exit 1; }

debian_choose "$codename"
obstacle=$(debian_obstacle)
[ -z "$obstacle" ] || { echo "SKIPPED: $obstacle"; exit 0; }
ls "$source_dir"/build/packages/*.deb >/dev/null 2>&1 || { echo "SKIPPED: there are no packages: scripts/package makes them"; exit 0; }
debian_prepare
cp -r "$source_dir/build/packages" "$debian_dir/packages"
inside() { debian_run bash -euc "$1" >"$DDRUN_DEBIAN_DIR/log" 2>&1 || { tail -n 60 "$DDRUN_DEBIAN_DIR/log"; fail "in $debian_name: $1"; }; }

inside "apt-get install -y --no-install-recommends /packages/ddrun_*_$(dpkg --print-architecture).deb"
inside 'cd /; ddrun -n 2 ddrun-allreduce -b 8 -e 1K'
inside 'apt-get purge -y ddrun; ! command -v ddrun; [ ! -e /usr/share/doc/ddrun ]'

# What is missing is said before anything is compiled. What pip needs for that is fetched outside, where PyPI's
# certificates are known.
inside 'apt-get install -y --no-install-recommends python3 python3-venv; python3 -m venv /venv'
"$source_dir/build/package-tools/bin/pip" download --quiet --dest "$debian_dir/tools" scikit-build-core cmake ninja
wheel='PIP_NO_INDEX=1 PIP_FIND_LINKS=/tools /venv/bin/pip wheel --no-deps --wheel-dir /wheel /packages/ddrun-[0-9].[0-9].[0-9].tar.gz'
inside "if $wheel >/said 2>&1; then exit 1; fi; grep 'scripts/setup installs them on Debian' /said || { cat /said; exit 1; }"

inside 'mkdir /source; tar -xzf /packages/ddrun-[0-9].[0-9].[0-9].tar.gz --strip-components=1 -C /source; /source/scripts/setup'
inside "$wheel"
inside '/venv/bin/pip install --no-index /wheel/ddrun-*-py3-none-manylinux*.musllinux_1_1_*.whl; cd /venv; bin/ddrun -n 2 bin/ddrun-allreduce -b 8 -e 1K'
inside '/venv/bin/python -m ddrun --version'
