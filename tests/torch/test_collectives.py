"""Process groups of gloo, made in every way and of several sizes, and all that can be done in them."""
import json

from harness import TorchTest, main, run_ddrun, run_torchrun, script


class Collectives(TorchTest):
    def results(self, runner, size, **env):
        """What each rank got, in the order of ranks."""
        folder = self.tmp / f"{runner.__name__}_{size}{''.join(env.values())}"
        folder.mkdir()
        self.assert_success(runner([f"--nproc-per-node={size}", script("collectives.py"), folder], env=env))
        ranks = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(size)]
        for rank, result in enumerate(ranks):
            self.assertIs(result["is_torchelastic_launched"], True)
            for method in ("env://", "tcp://", "file://"):
                facts = {name: result[method][name] for name in ("backend", "rank", "size", "local rank")}
                self.assertEqual(facts, {"backend": "gloo", "rank": rank, "size": size, "local rank": rank})
            # One that is worked out here, so that not everything hangs on both launchers being wrong alike.
            total = sum(10 * (i + 1) for i in range(size))
            expected = [float(total + size * i) for i in range(4)]
            self.assertEqual(result["collectives"]["all_reduce SUM"], expected)
            self.assertEqual(result["tcp://"]["all_reduce SUM"], expected)
            self.assertEqual(result["file://"]["all_reduce SUM"], expected)
            if size > 1:
                self.assertIs(result["absent rank"]["noticed"], True if rank == 0 else None)
        return ranks

    def test_world_size_1(self):
        self.assertEqual(self.results(run_ddrun, 1), self.results(run_torchrun, 1))

    def test_world_size_2(self):
        self.assertEqual(self.results(run_ddrun, 2), self.results(run_torchrun, 2))

    def test_world_size_4(self):
        self.assertEqual(self.results(run_ddrun, 4), self.results(run_torchrun, 4))

    def test_world_size_8(self):
        self.results(run_ddrun, 8)

    def test_debug_detail(self):
        ours = self.results(run_ddrun, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")
        self.assertEqual([rank["DETAIL"] for rank in ours], [{"mismatch": True}] * 2)
        self.assertEqual(ours, self.results(run_torchrun, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL"))


if __name__ == "__main__":
    main()
