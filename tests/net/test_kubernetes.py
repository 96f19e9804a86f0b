#!/usr/bin/env python3
"""The manifests of configs/kubernetes, each pod in a host of the test bed with the variables and names it would have."""

import pathlib

from netcase import ALLREDUCE, DDRUN, NetTest, main

try:
    import yaml
except ImportError:
    yaml = None

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs/kubernetes"
SECRET = "what ddrun secret new --print would say"
WHO = 'echo "I am $RANK of $WORLD_SIZE on node $GROUP_RANK, local $LOCAL_RANK, job $TORCHELASTIC_RUN_ID"'


class Pod:
    """What a kubelet makes of a pod's template."""

    def __init__(self, host, name, domain, template, variables):
        spec = template["spec"]
        self.host, self.name, self.domain = host, name, domain
        self.container = spec["containers"][0]
        self.variables = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": name,
                          **variables}
        for entry in self.container.get("env", []):
            assert set(entry) == {"name", "valueFrom"} and "secretKeyRef" in entry["valueFrom"], entry
            self.reference = entry["valueFrom"]["secretKeyRef"]
            self.variables[entry["name"]] = SECRET

    def words(self):
        """The container's command, with our programs, or with a worker that says who it is."""
        command = self.container["command"]
        if "ddrun-allreduce" in command:
            return [{"ddrun": DDRUN, "ddrun-allreduce": ALLREDUCE}.get(word, word) for word in command]
        assert command[0] == "ddrun" and command[-1] == "/app/train", command
        return [DDRUN, *command[1:-1], "bash", "-c", WHO]

    def line(self):
        names = f"{self.name}.{self.domain} {self.name}" if self.domain else self.name
        return f"{self.host.address}\t{names}\n"

    def start(self, others):
        """As a container: its own name and hosts file, and no variable but its own. The lines of `others` are DNS."""
        hosts = self.host.home / "hosts"
        hosts.write_text("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n" +
                         self.line() + "".join(pod.line() for pod in others if pod is not self))
        script = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
        return self.host.start(["unshare", "--mount", "--uts", "bash", "-c", script, "container", self.name, hosts,
                                *self.words()], env={**self.variables, "HOME": None})


class Manifests(NetTest):
    hosts = 2

    def read(self, file):
        """The objects of a manifest by kind; their names and the secret's fit together."""
        if yaml is None:
            self.skipTest("python3-yaml not installed: run scripts/setup --tests")
        objects = {one["kind"]: one for one in yaml.safe_load_all((CONFIGS / file).read_text())}
        self.assertLess(len(objects["Secret"]["stringData"]["secret"]), 16, "a placeholder that works is a secret for all")
        return objects

    def play(self, pods, objects):
        for pod in pods:
            self.assertEqual(pod.reference["name"], objects["Secret"]["metadata"]["name"])
            self.assertIn(pod.reference["key"], objects["Secret"]["stringData"])
            self.assertEqual(pod.container["env"][0]["name"], "DDRUN_SECRET")
        started = [pod.start(pods) for pod in reversed(pods)]
        said = []
        for one in started:
            self.assertEqual(one.wait(60), 0, f"{one}")
            said += [line.split("] ", 1)[-1] for line in one.out.splitlines()]
        return sorted(said)

    def check(self, said, job):
        self.assertEqual(said, [f"I am {rank} of 4 on node {rank // 2}, local {rank % 2}, job {job}" for rank in range(4)])

    def test_indexed_job(self):
        objects = self.read("indexed-job.yaml")
        job, service = objects["Job"], objects["Service"]
        self.assertEqual(job["spec"]["completionMode"], "Indexed")
        template, count = job["spec"]["template"], job["spec"]["completions"]
        self.assertEqual(job["spec"]["parallelism"], count)
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])
        self.assertEqual(service["metadata"]["name"], template["spec"]["subdomain"])
        self.assertLessEqual(service["spec"]["selector"].items(), template["metadata"]["labels"].items())
        name, domain = job["metadata"]["name"], f"{template['spec']['subdomain']}.default.svc.cluster.local"
        pods = [Pod(self.bed.hosts[index], f"{name}-{index}", domain, template, {"JOB_COMPLETION_INDEX": index})
                for index in range(count)]
        self.assertIn(f"--nnodes={count}", pods[0].container["command"])
        self.check(self.play(pods, objects), "train")

    def test_allreduce_job(self):
        objects = self.read("allreduce-job.yaml")
        job, service = objects["Job"], objects["Service"]
        template, count = job["spec"]["template"], job["spec"]["completions"]
        self.assertEqual(service["metadata"]["name"], template["spec"]["subdomain"])
        self.assertLessEqual(service["spec"]["selector"].items(), template["metadata"]["labels"].items())
        spread, = template["spec"]["topologySpreadConstraints"]
        self.assertEqual(spread["labelSelector"]["matchLabels"], template["metadata"]["labels"])
        domain = f"{template['spec']['subdomain']}.default.svc.cluster.local"
        pods = [Pod(self.bed.hosts[index], f"{job['metadata']['name']}-{index}", domain, template,
                    {"JOB_COMPLETION_INDEX": index}) for index in range(count)]
        command = pods[0].container["command"]
        self.assertIn(f"--nnodes={count}", command)
        # Of this machine, and of whatever else runs on it, nothing is asked; what is, is judged in the second run.
        bounds = {"--min-busbw=0.1": "--min-busbw=0.000001", "--max-latency=10ms": "--max-latency=60s"}
        self.assertLessEqual(bounds.keys(), set(command))
        pods[0].container["command"] = [bounds.get(word, word) for word in command]
        said = "\n".join(self.play(pods, objects))
        self.assertIn("# Out of bounds values : 0 OK", said)
        self.assertIn("ranks: 4 ", said)
        bounds["--min-busbw=0.1"] = "--min-busbw=1000000"
        pods[0].container["command"] = [bounds.get(word, word) for word in command]
        started = [pod.start(pods) for pod in reversed(pods)]
        self.assertEqual([one.wait(60) for one in started], [3, 3], f"{started}")
        # One rank says so, and the reports repeat it.
        said = "".join(one.err for one in started)
        self.assertEqual(said.count("] ddrun-allreduce: error: too slow: all_reduce of 8 MiB"), 1, said)

    def test_jobset(self):
        objects = self.read("jobset.yaml")
        jobset = objects["JobSet"]
        self.assertTrue(jobset["spec"]["network"]["enableDNSHostnames"])
        replicated, = jobset["spec"]["replicatedJobs"]
        self.assertEqual(replicated["replicas"], 1)
        spec = replicated["template"]["spec"]
        name = f"{jobset['metadata']['name']}-{replicated['name']}-0"
        domain = f"{jobset['metadata']['name']}.default.svc.cluster.local"
        pods = [Pod(self.bed.hosts[index], f"{name}-{index}", domain, spec["template"], {"JOB_COMPLETION_INDEX": index})
                for index in range(spec["completions"])]
        self.assertEqual(spec["parallelism"], len(pods))
        self.assertIn(f"--nnodes={len(pods)}", pods[0].container["command"])
        self.check(self.play(pods, objects), "train-workers-0")

    def test_pytorchjob(self):
        objects = self.read("pytorchjob.yaml")
        job = objects["PyTorchJob"]
        replicas = job["spec"]["pytorchReplicaSpecs"]
        per_node = job["spec"]["nprocPerNode"]
        self.assertEqual(replicas["Master"]["replicas"], 1)
        names = [("Master", f"{job['metadata']['name']}-master-0")]
        names += [("Worker", f"{job['metadata']['name']}-worker-{n}") for n in range(replicas["Worker"]["replicas"])]
        pods = []
        for index, (kind, name) in enumerate(names):
            template = replicas[kind]["template"]
            self.assertEqual(template["spec"]["containers"][0]["name"], "pytorch")
            # What the operator's envvar code sets: RANK and WORLD_SIZE speak of pods.
            pods.append(Pod(self.bed.hosts[index], name, "", template, {
                "PYTHONUNBUFFERED": "1", "MASTER_ADDR": names[0][1], "PET_MASTER_ADDR": names[0][1],
                "MASTER_PORT": "23456", "PET_MASTER_PORT": "23456", "WORLD_SIZE": len(names) * int(per_node),
                "RANK": index, "PET_NODE_RANK": index, "PET_NNODES": len(names), "PET_NPROC_PER_NODE": per_node}))
        self.check(self.play(pods, objects), "none")

    def test_a_placeholder_is_no_secret(self):
        objects = self.read("indexed-job.yaml")
        pod = Pod(self.bed.hosts[0], "train-0", "train.default.svc.cluster.local", objects["Job"]["spec"]["template"],
                  {"JOB_COMPLETION_INDEX": 0})
        pod.variables["DDRUN_SECRET"] = objects["Secret"]["stringData"]["secret"]
        started = pod.start([pod])
        self.assertEqual(started.wait(30), 2, f"{started}")
        self.assertIn("16", started.err)

    def test_pods_without_a_number_of_nodes_are_alone(self):
        pod = Pod(self.bed.hosts[0], "sweep-1", "", {"spec": {"containers": [{"command": ["ddrun", "/app/train"]}]}},
                  {"JOB_COMPLETION_INDEX": 1})
        started = pod.start([pod])
        self.assertEqual(started.wait(30), 0, f"{started}")
        self.assertEqual(started.out.split(", job")[0], "I am 0 of 1 on node 0, local 0", f"{started}")
        self.assertNotIn("sweep", started.out)


if __name__ == "__main__":
    main()
