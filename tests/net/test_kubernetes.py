#!/usr/bin/env python3
"""The manifests of configs/kubernetes, each pod in a host of the test bed with the variables and names it would have."""

import json
import pathlib
import shutil
import time

from jobs import PATIENCE, TERMINATE
from netcase import ALLREDUCE, DDRUN, WORKER, NetTest, main, wait_until

try:
    import yaml
except ImportError:
    yaml = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs/kubernetes"
LEASE = ROOT / "configs/lease/kubernetes.sh"
API = ROOT / "tests/process/lease/fake_kubernetes.py"
SECRET = "what ddrun secret new --print would say"
UID = "5f0c8a52-7d55-4a8e-a7a0-0f6b6a6f5d11"  # of the Job
WHO = 'echo "I am $RANK of $WORLD_SIZE on node $GROUP_RANK, local $LOCAL_RANK, job $TORCHELASTIC_RUN_ID"'


class Pod:
    """What a kubelet makes of a pod's template."""
    program = ("bash", "-c", WHO)

    def __init__(self, host, name, domain, template, variables):
        spec = template["spec"]
        self.host, self.name, self.domain = host, name, domain
        self.container = spec["containers"][0]
        self.variables = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": name,
                          **variables}
        for entry in self.container.get("env", []):
            if "fieldRef" in entry["valueFrom"]:
                assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/controller-uid']", entry
                self.variables[entry["name"]] = UID
                continue
            assert set(entry) == {"name", "valueFrom"} and "secretKeyRef" in entry["valueFrom"], entry
            self.reference = entry["valueFrom"]["secretKeyRef"]
            self.variables[entry["name"]] = SECRET

    def words(self):
        """The container's command, with our programs, or with a worker that says who it is."""
        command = self.container["command"]
        if "ddrun-allreduce" in command:
            return [{"ddrun": DDRUN, "ddrun-allreduce": ALLREDUCE}.get(word, word) for word in command]
        assert command[0] == "ddrun" and command[-1] == "/app/train", command
        command = [word.replace("$(RUN)", UID).replace("/app/kubernetes.sh", str(LEASE)) for word in command]
        return [DDRUN, *command[1:-1], *self.program]

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


class KubernetesTest(NetTest):
    def read(self, file):
        """The objects of a manifest by kind; their names and the secret's fit together."""
        if yaml is None:
            self.skipTest("python3-yaml not installed: run scripts/setup --tests")
        objects = {one["kind"]: one for one in yaml.safe_load_all((CONFIGS / file).read_text())}
        self.assertLess(len(objects["Secret"]["stringData"]["secret"]), 16, "a placeholder that works is a secret for all")
        return objects


class Manifests(KubernetesTest):
    hosts = 2

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


class DeletedPods(KubernetesTest):
    """The coordinator's pod is deleted: the job goes on, with the Job's next pod."""
    hosts = 5
    SAYING_ITS_ROUND = 'read -r pod </proc/sys/kernel/hostname; echo "$DDRUN_ROUND $pod" >>"$0"; exec "$@"'

    def setUp(self):
        super().setUp()
        if not shutil.which("curl"):
            self.skipTest("curl not installed")
        self.objects = self.read("elastic-job.yaml")
        self.template = self.objects["Job"]["spec"]["template"]
        account = self.bed.dir / "account"
        account.mkdir()
        for name, text in (("token", "a.b-c"), ("namespace", "default"), ("ca.crt", "")):
            (account / name).write_text(text)
        server = self.bed[5]
        self.api = f"http://{server.address}:6443"
        self.variables = {"DDRUN_KUBERNETES_API": self.api, "DDRUN_SERVICE_ACCOUNT": account, "DDRUN_LAST_CALL": "1",
                          "DDRUN_LEASE_TTL": "3", "DDRUN_SHUTDOWN_TIMEOUT": "5"}
        self.server = server.start(["python3", API, "6443", "a.b-c", server.address])
        wait_until(self.lease_is_asked, 20, "the API server")
        self.reports, self.go, self.pods = self.bed.dir / "pods", self.bed.dir / "go", {}

    def lease_is_asked(self):
        return self.ask() is not None

    def ask(self):
        """The job's Lease; empty if there is none yet."""
        url = f"{self.api}/apis/coordination.k8s.io/v1/namespaces/default/leases/train-{UID}"
        asked = self.bed[5].run(["curl", "-s", "-H", "Authorization: Bearer a.b-c", url])
        asked.host.bed.started.remove(asked)
        text = asked.out
        asked.close()
        return json.loads(text) if text else None

    def coordinator(self):
        """The pod that leads, as the Lease says."""
        address = (self.ask() or {}).get("metadata", {}).get("annotations", {}).get("ddrun/address", "")
        return next((pod for pod in self.pods.values() if pod.host.address in address), None)

    def start(self, name, host):
        pod = self.pods[name] = Pod(host, name, "", self.template, self.variables)
        pod.program = ("sh", "-c", self.SAYING_ITS_ROUND, self.reports, WORKER, "await", self.go)
        pod.job = pod.start([pod])
        return pod

    def said(self):
        return "\n".join(str(one) for one in self.bed.started)

    def wait_for_round(self, after, names, within):
        """Until a round after this one has two workers in each of these pods: its number."""
        found = []
        def there():
            lines = [line.split() for line in self.reports.read_text().splitlines()] if self.reports.exists() else []
            last = max((int(number) for number, _ in lines), default=0)
            found[:] = [last]
            return last > after and sorted(pod for number, pod in lines if int(number) == last) == sorted(2 * list(names))
        since = time.monotonic()
        wait_until(there, within + PATIENCE, lambda: f"a round after {after} of {', '.join(names)}\n{self.said()}")
        print(f"pods {', '.join(names)}: a round after {time.monotonic() - since:.2f} s", flush=True)
        return found[0]

    def test_the_job_goes_on(self):
        account, role = self.objects["ServiceAccount"]["metadata"]["name"], self.objects["Role"]
        self.assertEqual(self.template["spec"]["serviceAccountName"], account)
        self.assertEqual(self.objects["RoleBinding"]["subjects"], [{"kind": "ServiceAccount", "name": account}])
        self.assertEqual(self.objects["RoleBinding"]["roleRef"]["name"], role["metadata"]["name"])
        self.assertEqual(role["rules"], [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                                          "verbs": ["get", "create", "patch"]}])
        first = self.start("train-aaaaa", self.bed[1])
        wait_until(lambda: self.coordinator() is first, 30, lambda: f"the coordinator\n{self.said()}")
        self.start("train-bbbbb", self.bed[2])
        self.start("train-ccccc", self.bed[3])
        number = self.wait_for_round(0, self.pods, 10)
        # Deleted: told to end, and after that its network and all that is left of it go.
        first.job.signal(TERMINATE)
        self.assertEqual(first.job.wait(5 + PATIENCE), 143, self.said())
        self.bed[1].crash()
        del self.pods[first.name]
        number = self.wait_for_round(number, self.pods, 3)
        # The Job's next pod has another name and another address.
        self.start("train-ddddd", self.bed[4])
        self.wait_for_round(number, self.pods, 5)
        self.go.touch()
        for pod in self.pods.values():
            self.assertEqual(pod.job.wait(30 + PATIENCE), 0, self.said())
        self.assertIn("ddrun/verdict", self.ask()["metadata"]["annotations"])
        self.server.signal(TERMINATE)


if __name__ == "__main__":
    main()
