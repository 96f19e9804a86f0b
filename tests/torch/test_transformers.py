"""Transformers' Trainer with a tiny random model."""
from harness import TorchTest, main, run_ddrun, run_torchrun, script
from ranks import facts_of_ranks


class Transformers(TorchTest):
    needs = ("torch", "transformers", "accelerate")

    def test_training(self):
        ours = facts_of_ranks(self, run_ddrun, script("transformers_train.py"))
        for rank, facts in enumerate(ours):
            for name, expected in {
                    "rank": rank, "local rank": rank, "dist rank": rank, "world size": 2, "dist world size": 2,
                    "backend": "gloo", "mode": "ParallelMode.DISTRIBUTED", "is_torchelastic_launched": True,
                    "is main": rank == 0, "steps": 4, "sum": 3.0}.items():
                self.assertEqual(facts[name], expected, name)
            self.assertEqual(facts["parameters"], ours[0]["parameters"])
            self.assertEqual(len(facts["losses"]), 4)
        self.assertEqual(ours, facts_of_ranks(self, run_torchrun, script("transformers_train.py")))


if __name__ == "__main__":
    main()
