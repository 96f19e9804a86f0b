"""Training with DistributedDataParallel: the same to the last bit under both launchers, and after a restart."""
import json

from harness import TorchTest, main, run_ddrun, run_torchrun, script

EPOCHS = 6


class DistributedTraining(TorchTest):
    def train(self, name, runner, *options, script_options=()):
        """What each rank wrote at the end."""
        folder = self.tmp / name
        folder.mkdir()
        self.assert_success(runner(["--nproc-per-node=2", *options, script("train_ddp.py"), f"--folder={folder}",
                                    f"--epochs={EPOCHS}", *script_options]))
        return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]

    def test_equal_to_the_last_bit(self):
        ours = self.train("ddrun", run_ddrun)
        steps = EPOCHS * 256 // 2 // 16
        for rank in ours:
            self.assertEqual(len(rank["losses"]), steps)
            first, last = float.fromhex(rank["losses"][0]), float.fromhex(rank["losses"][-1])
            self.assertLess(last, first, "it did not learn")
        self.assertEqual(ours[0]["parameters"], ours[1]["parameters"])
        self.assertNotEqual(ours[0]["losses"], ours[1]["losses"])  # each has data of its own
        self.assertEqual(ours, self.train("torchrun", run_torchrun))
        self.assertEqual(ours, self.train("rerun", run_ddrun))

        # Rank 1 dies, the job goes on from the last checkpoint, and nothing shows that it had to.
        resumed = self.train("resumed", run_ddrun, "--max-restarts=1", script_options=["--die-in-epoch=3"])
        for rank, undisturbed in zip(resumed, ours):
            self.assertEqual((rank["restarts"], rank["epochs of this attempt"]), (1, EPOCHS - 3))
            self.assertEqual((rank["losses"], rank["parameters"]), (undisturbed["losses"], undisturbed["parameters"]))


if __name__ == "__main__":
    main()
