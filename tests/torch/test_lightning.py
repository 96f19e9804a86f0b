"""Lightning's Trainer, with its processes made by the launcher and by itself."""
from harness import TorchTest, main, run_ddrun, run_torchrun, script
from ranks import facts_of_ranks


class Lightning(TorchTest):
    needs = ("torch", "lightning")

    def check(self, ranks, environment):
        size = len(ranks)
        for rank, facts in enumerate(ranks):
            for name, expected in {
                    "rank": rank, "local rank": rank, "dist rank": rank, "world size": size, "dist world size": size,
                    "backend": "gloo", "is_torchelastic_launched": True, "environment": environment,
                    "steps": 16 // size, "sum": size * (size + 1) / 2}.items():
                self.assertEqual(facts[name], expected, name)
            self.assertEqual(len(facts["losses"]), 16 // size)
            self.assertEqual(facts["parameters"], ranks[0]["parameters"])
        # Every sample was seen once in each of two epochs, by one rank.
        self.assertEqual(sorted(sum((facts["seen"] for facts in ranks), [])), sorted(2 * list(range(32))))

    def test_ddp_and_ddp_spawn(self):
        train = script("lightning_train.py")
        ddp = facts_of_ranks(self, run_ddrun, train, "ddp", 2)
        self.check(ddp, "TorchElasticEnvironment")
        self.assertEqual(ddp, facts_of_ranks(self, run_torchrun, train, "ddp", 2))
        # One worker that spawns both ranks learns the same.
        spawned = facts_of_ranks(self, run_ddrun, train, "ddp_spawn", 2, "spawns", workers=1, ranks=2)
        self.check(spawned, "LightningEnvironment")
        self.assertEqual([facts["losses"] for facts in spawned], [facts["losses"] for facts in ddp])
        self.assertEqual(spawned[0]["parameters"], ddp[0]["parameters"])

    def test_ddp_spawn_in_the_launchers_rank(self):
        self.check(facts_of_ranks(self, run_ddrun, script("lightning_train.py"), "ddp_spawn", 1, workers=1),
                   "TorchElasticEnvironment")


if __name__ == "__main__":
    main()
