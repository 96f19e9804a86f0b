#!/usr/bin/env bash
# installed_copy.sh BUILD_DIR CMAKE LINK WORKER_LINK: installs into a fresh directory and uses what is there.
set -euo pipefail
build=$1 cmake=$2 link=$3 worker_link=$4
prefix=$(mktemp -d)
here=$(dirname "$(realpath "$0")")
trap 'rm -rf "$prefix"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

"$cmake" --install "$build" --prefix "$prefix" >"$prefix.log" 2>&1 || { cat "$prefix.log"; rm -f "$prefix.log"; fail "install"; }
rm -f "$prefix.log"
for file in bin/ddrun bin/ddrun-allreduce share/man/man1/ddrun.1 share/man/man1/ddrun-allreduce.1 \
  share/bash-completion/completions/ddrun share/bash-completion/completions/ddrun-allreduce share/zsh/site-functions/_ddrun share/fish/vendor_completions.d/ddrun.fish \
  share/doc/ddrun/README.md share/doc/ddrun/CHANGELOG.md share/doc/ddrun/docs/coming-from-torchrun.md share/doc/ddrun/docs/schemas/{report,events}.schema.json \
  share/doc/ddrun/{LICENSE,NOTICE,copyright} share/doc/ddrun/docs/licenses/Apache-2.0.txt share/doc/libddrun-dev/copyright \
  share/doc/ddrun/configs/cpu-smoke.toml share/doc/ddrun/scripts/each-host; do
  [ -s "$prefix/$file" ] || fail "$file is not installed"
done

# What the installed pages link to is installed too.
pages=$(find "$prefix/share/doc/ddrun" -name '*.md')
[ "$(wc -l <<<"$pages")" -gt 15 ] || fail "few pages are installed: $pages"
while read -r page; do
  while read -r target; do
    [[ $target =~ ^([a-z]+:|#) ]] || [ -e "$(dirname "$page")/${target%%#*}" ] || fail "$page links to $target, which is not installed"
  done < <(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//')
done <<<"$pages"

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
shows() { # OPTION FILE REGEX: what readelf says of the file
  local text
  text=$(readelf "$1" --wide "$2")
  grep -q "$3" <<<"$text"
}
build_id() { readelf --notes --wide "$1" | sed -n 's/.*Build ID: *//p'; }
for program in ddrun ddrun-allreduce; do
  file=$prefix/bin/$program
  shows --file-header "$file" 'Type: *DYN' || fail "$program is not position-independent"
  how=$link
  [ "$program" != ddrun-allreduce ] || how=$worker_link
  if [ "$how" = static ]; then
    ! shows --program-headers "$file" INTERP || fail "$program needs a dynamic linker"
    ! shows --dynamic "$file" NEEDED || fail "$program needs shared libraries"
  elif [ "$how" = partial ]; then
    # The C library and its parts alone.
    ! readelf --dynamic --wide "$file" | grep NEEDED | grep -vE '\[(libc|libm|ld-linux-x86-64)\.so' ||
      fail "$program needs more than the C library"
  fi
  # Any x86-64 of the last ten years, any kernel that glibc supports.
  shows --notes "$file" 'ABI: 3\.2\.0' || fail "$program asks for another kernel: $(readelf -nW "$file")"
  ! shows --notes "$file" 'ISA needed:.*x86-64-v[234]' || fail "$program needs a newer CPU"
  # Its symbols lie where debuggers look for them, and belong to it.
  debug=$prefix/bin/.debug/$program.debug
  [ -s "$debug" ] || fail "$program.debug is not installed"
  [ "$(build_id "$file")" = "$(build_id "$debug")" ] || fail "$program.debug belongs to another program"
  # (scripts/quickstart leaves out all but names.)
  ! grep -q '^CMAKE_CXX_FLAGS_RELWITHDEBINFO:.*-g' "$build/CMakeCache.txt" || shows --section-headers "$debug" '\.debug_line' || fail "$program.debug has no line numbers"
  ! shows --section-headers "$file" '\.debug_line' || fail "$program still has its symbols"
  shows --section-headers "$file" '\.gnu_debuglink' || fail "$program does not name its symbols"
done
# The same sources in another folder make the same programs (reproducible.sh builds them).
for program in ddrun ddrun-allreduce; do
  ! strings -a "$prefix/bin/$program" | grep -F "${build%/build/*}/" || fail "$program names the folder it was built in"
done
python3 "$here/hardened.py" "$prefix"/bin/{ddrun,ddrun-allreduce} || fail "a program is not hardened"
