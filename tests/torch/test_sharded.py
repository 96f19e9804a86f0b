"""DeviceMesh, FSDP2, DTensor, distributed checkpoints and RPC, on the CPU: the same results under both launchers."""
import json

from harness import TorchTest, main, run_ddrun, run_torchrun, script

RANKS = 4


class Sharded(TorchTest):
    def results(self, runner):
        folder = self.tmp / runner.__name__
        folder.mkdir()
        self.assert_success(runner([f"--nproc-per-node={RANKS}", script("sharded.py"), folder]))
        return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(RANKS)]

    def test_equal_results(self):
        ours = self.results(run_ddrun)
        for rank, result in enumerate(ours):
            self.assertEqual(result["mesh"]["coordinate"], [rank // 2, rank % 2])
            self.assertEqual(result["fsdp"]["parameters"], ours[0]["fsdp"]["parameters"])
            self.assertEqual(result["fsdp"]["shard"], [32 // RANKS, 8])
            self.assertEqual(result["rpc"]["async"], f"worker{(rank + 1) % RANKS}")
        self.assertEqual(ours, self.results(run_torchrun))


if __name__ == "__main__":
    main()
