# A job of ddrun on all machines of a Dask cluster: python3 dask_job.py SCHEDULER (docs/schedulers.md).
import os, secrets, socket, subprocess, sys
from distributed import Client

def free_endpoint(dask_worker):
    with socket.create_server(("", 0)) as probe:
        return f"{dask_worker.ip}:{probe.getsockname()[1]}"

def agent(node, nodes, endpoint, secret):
    options = [f"--nnodes={nodes}", f"--node-rank={node}", f"--rdzv-endpoint={endpoint}"]
    subprocess.run(["ddrun", "--end-with-parent", *options, "--nproc-per-node=8", "train.py"],
                   env={**os.environ, "DDRUN_SECRET": secret}, check=True)

client = Client(sys.argv[1])
workers, secret = list(client.nthreads()), secrets.token_hex(32)
[endpoint] = client.run(free_endpoint, workers=workers[:1]).values()
agents = [client.submit(agent, node, len(workers), endpoint, secret, workers=[worker], pure=False)
          for node, worker in enumerate(workers)]
client.gather(agents)
