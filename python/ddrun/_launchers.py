"""The functions by which accelerate and torch start workers from Python, with processes of ddrun.

Nothing is forked, so that the caller may have initialized CUDA. Functions of a notebook work. What a rank raises is raised
in the caller.
"""

import dataclasses
from typing import Any, Dict, Optional

from ddrun._group import launch
from ddrun._task import payload


def notebook_launcher(function, args=(), num_processes=None, mixed_precision="no", use_port="29500", master_addr="127.0.0.1",
                      node_rank=0, num_nodes=1, rdzv_backend="static", rdzv_endpoint="", rdzv_conf=None, rdzv_id="none",
                      max_restarts=0, monitor_interval=0.1, log_line_prefix_template=None):
    """accelerate's notebook_launcher. Returns the values of this machine's ranks. use_port is for several machines."""
    config = LaunchConfig(num_nodes, num_nodes, num_processes or "auto", max_restarts=max_restarts,
                          rdzv_configs=rdzv_conf or {})
    options = config_options(config) + [f"--env=ACCELERATE_MIXED_PRECISION={mixed_precision}"]
    if num_nodes > 1:
        options += [f"--node-rank={node_rank}", f"--rdzv-id={rdzv_id}", f"--rdzv-backend={rdzv_backend}"]
        options += [f"--master-addr={master_addr}", f"--master-port={use_port}"] if rdzv_backend == "static" else \
            [f"--rdzv-endpoint={rdzv_endpoint or f'{master_addr}:{use_port}'}"]
    return list(launch(payload(function, *args), options).values())


@dataclasses.dataclass
class LaunchConfig:
    """The fields of torch.distributed.launcher.api.LaunchConfig, which elastic_launch takes too."""

    min_nodes: int
    max_nodes: int
    nproc_per_node: Any
    logs_specs: Optional[Any] = None
    run_id: str = ""
    role: str = "default"
    rdzv_endpoint: str = ""
    rdzv_backend: str = ""
    rdzv_configs: Dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: Optional[str] = None
    metrics_cfg: Dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: Optional[str] = None
    event_log_handler: str = "null"
    numa_options: Optional[Any] = None
    signals_to_handle: str = ""
    virtual_local_rank: bool = False


def elastic_launch(config, entrypoint):
    """torch's elastic_launch(config, entrypoint)(*args): returns the values by rank, of this machine's ranks."""
    if not callable(entrypoint):
        raise TypeError("entrypoint has to be a function; the command ddrun runs programs")
    options = config_options(config)
    return lambda *args: launch(payload(entrypoint, *args), options)


def config_options(config):
    """Words of the command line. Left out is what is for torch's own processes: intervals, start method, metrics, prefix."""
    names = {"run_id": "rdzv-id", "role": "role", "local_addr": "local-addr", "signals_to_handle": "signals-to-handle"}
    if config.rdzv_endpoint:
        names.update(rdzv_endpoint="rdzv-endpoint", rdzv_backend="rdzv-backend")
    options = [f"--nnodes={config.min_nodes}:{config.max_nodes}", f"--nproc-per-node={config.nproc_per_node}",
               f"--max-restarts={config.max_restarts}"]
    options += [f"--{option}={value}" for name, option in names.items() if (value := getattr(config, name, None))]
    settings = {**config.rdzv_configs, **({"timeout": config.rdzv_timeout} if config.rdzv_timeout > 0 else {})}
    options += [f"--rdzv-conf={','.join(f'{name}={value}' for name, value in settings.items())}"] if settings else []
    options += [f"--log-dir={folder}"] if (folder := getattr(config.logs_specs, "root_log_dir", None)) else []
    return options + ["--virtual-local-rank"] * bool(getattr(config, "virtual_local_rank", False))
