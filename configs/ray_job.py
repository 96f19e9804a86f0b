# A job of ddrun on two machines of a Ray cluster: one task on each runs an agent (docs/schedulers.md).
import os, secrets, socket, subprocess
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES, GPUS = 2, 8

def free_endpoint():
    with socket.create_server(("", 0)) as probe:
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"

def agent(node, endpoint, secret):
    options = [f"--nnodes={NODES}", f"--node-rank={node}", f"--rdzv-endpoint={endpoint}"]
    subprocess.run(["ddrun", "--end-with-parent", *options, f"--nproc-per-node={GPUS}", "train.py"],
                   env={**os.environ, "DDRUN_SECRET": secret}, check=True)

def start(function, node, *args, **resources):
    place = PlacementGroupSchedulingStrategy(group, node)
    return ray.remote(scheduling_strategy=place, **resources)(function).remote(*args)

ray.init(runtime_env={"working_dir": "."})
group = placement_group([{"CPU": 1, "GPU": GPUS}] * NODES, strategy="STRICT_SPREAD")
endpoint, secret = ray.get(start(free_endpoint, 0)), secrets.token_hex(32)
agents = [start(agent, node, node, endpoint, secret, num_gpus=GPUS) for node in range(NODES)]
ray.get(agents)
