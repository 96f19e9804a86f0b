"""Accelerate without its own launcher."""
from harness import TorchTest, main, run_ddrun, run_torchrun, script
from ranks import facts_of_ranks


class Accelerate(TorchTest):
    needs = ("torch", "accelerate")

    def test_training(self):
        ours = facts_of_ranks(self, run_ddrun, script("accelerate_train.py"))
        for rank, facts in enumerate(ours):
            for name, expected in {
                    "rank": rank, "local rank": rank, "dist rank": rank, "world size": 2, "dist world size": 2,
                    "backend": "gloo", "kind": "DistributedType.MULTI_CPU", "is_torchelastic_launched": True,
                    "is main": rank == 0, "sum": 3.0, "gathered": [0, 1]}.items():
                self.assertEqual(facts[name], expected, name)
            self.assertEqual(facts["parameters"], ours[0]["parameters"])
            self.assertEqual(len(facts["losses"]), 8)
            self.assertLess(facts["losses"][-1], facts["losses"][0])
        self.assertEqual(sorted(ours[0]["seen"] + ours[1]["seen"]), sorted(2 * list(range(32))))
        self.assertEqual(ours, facts_of_ranks(self, run_torchrun, script("accelerate_train.py")))


if __name__ == "__main__":
    main()
