"""docs/several-programs.md: two PyTorch programs in one job, each with the default process group."""

import socket

from harness import TorchTest, main, run_ddrun, script

RUNS = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Programs(TorchTest):
    def test_sums_never_mix(self):
        for run in range(RUNS):
            with self.subTest(run=run):
                folder = self.tmp / str(run)
                folder.mkdir()
                part = ["-n2", script("sum_of_roles.py")]
                result = run_ddrun(["--label=none", "--max-restarts=1", *part, "1", folder, ":", "--role=other", *part,
                                    "100", folder], timeout=120)
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(sorted(result.out.splitlines()), sorted(["2 0", "200 0", "2 1", "200 1"] * 2), result.err)
                self.assertIn("other rank 1 (pid ", result.err)

    def test_servers_have_groups_of_their_own(self):
        """Under torchrun's variables a tcp:// group would wait for a store that no process starts."""
        for run in range(RUNS):
            with self.subTest(run=run):
                own, weights = free_port(), free_port()
                program = script("weight_group.py")
                result = run_ddrun(["--timeout=100", "--service", "-n2", "--role=server", program, "server", "${rank}", own, weights,
                                    ":", "-n2", "--role=trainer", program, "trainer", weights], timeout=120,
                                   env={"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "1", "RANK": "7"})
                self.assertEqual(result.code, 0, result.err)
                self.assertEqual(sorted(result.out.splitlines()),
                                 ["[server:0] servers 1", "[server:0] weights 10.0", "[server:1] servers 1", "[server:1] weights 10.0",
                                  "[trainer:0] trainers 1", "[trainer:1] trainers 1"], result.err)


if __name__ == "__main__":
    main()
