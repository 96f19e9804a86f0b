#!/usr/bin/env bash
# installed_copy.sh BUILD_DIR CMAKE LINK: installs into a fresh directory and uses what is there.
set -euo pipefail
build=$1 cmake=$2 link=$3
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$cmake" --install "$build" --prefix "$prefix" >"$prefix.log" 2>&1 || { cat "$prefix.log"; rm -f "$prefix.log"; fail "install"; }
rm -f "$prefix.log"
for file in bin/ddrun bin/ddrun-allreduce share/man/man1/ddrun.1 share/man/man1/ddrun-allreduce.1 \
  share/bash-completion/completions/ddrun share/zsh/site-functions/_ddrun share/fish/vendor_completions.d/ddrun.fish \
  share/doc/ddrun/README.md share/doc/ddrun/CHANGELOG.md share/doc/ddrun/differences-from-torchrun.md; do
  [ -s "$prefix/$file" ] || fail "$file is not installed"
done

ddrun=$prefix/bin/ddrun
version=$("$ddrun" --version)
grep -qE '^ddrun [0-9]+\.[0-9]+\.[0-9]+' <<<"$version" || fail "--version says: $version"

# From elsewhere, found along PATH, as a user would start it.
cd /
PATH=$prefix/bin:$PATH ddrun --nproc-per-node=2 ddrun-allreduce -b 8 -e 4K -n 2 >"$prefix/out" 2>&1 ||
  { cat "$prefix/out"; fail "the installed programs do not run a job"; }

# The shells read the completions.
bash -n "$prefix/share/bash-completion/completions/ddrun" || fail "bash cannot read its completions"
if command -v zsh >/dev/null; then
  zsh -n "$prefix/share/zsh/site-functions/_ddrun" || fail "zsh cannot read its completions"
fi
if command -v fish >/dev/null; then
  fish --no-execute "$prefix/share/fish/vendor_completions.d/ddrun.fish" || fail "fish cannot read its completions"
fi

[ "$link" = static ] || exit 0
command -v readelf >/dev/null || { echo "SKIPPED: readelf is not installed"; exit 0; }
for program in ddrun ddrun-allreduce; do
  file=$prefix/bin/$program
  readelf --file-header "$file" | grep -q 'Type: *DYN' || fail "$program is not position-independent"
  ! readelf --program-headers --wide "$file" | grep -q INTERP || fail "$program needs a dynamic linker"
  ! readelf --dynamic --wide "$file" | grep -q NEEDED || fail "$program needs shared libraries"
  # Any x86-64 of the last ten years, any kernel that glibc supports.
  readelf --notes --wide "$file" | grep -q 'ABI: 3\.2\.0' || fail "$program asks for another kernel: $(readelf -nW "$file")"
  ! readelf --notes --wide "$file" | grep -q 'x86-64-v[234]' || fail "$program needs a newer CPU"
  # Its symbols lie where debuggers look for them, and belong to it.
  id() { readelf --notes --wide "$1" | sed -n 's/.*Build ID: *//p'; }
  debug=$prefix/bin/.debug/$program.debug
  [ -s "$debug" ] || fail "$program.debug is not installed"
  [ "$(id "$file")" = "$(id "$debug")" ] || fail "$program.debug belongs to another program"
  readelf --section-headers --wide "$debug" | grep -q '\.debug_line' || fail "$program.debug has no line numbers"
  ! readelf --section-headers --wide "$file" | grep -q '\.debug_line' || fail "$program still has its symbols"
  readelf --section-headers --wide "$file" | grep -q '\.gnu_debuglink' || fail "$program does not name its symbols"
done
