"""ddrun's store as PyTorch's own client sees it: every call gives what PyTorch's own server gives."""
import json

from harness import TorchTest, main, run_ddrun, run_torchrun, script


class Store(TorchTest):
    def results(self, runner):
        folder = self.tmp / runner.__name__
        folder.mkdir()
        self.assert_success(runner(["--nproc-per-node=2", script("store_client.py"), folder]))
        return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]

    def test_every_call(self):
        ours, theirs = self.results(run_ddrun)
        launchers_store, pytorchs_store = ours.pop("store"), theirs.pop("store")
        self.assertGreater(len(pytorchs_store), 70)
        for name, expected in pytorchs_store.items():
            with self.subTest(name):
                self.assertEqual(launchers_store[name], expected)
        for name in ("more than 8 MiB", "too long a key", "add to no number", "others go on"):
            self.assertIs(pytorchs_store[name], True, name)

        # What the ranks did with each other; under torchrun both stores are PyTorch's.
        self.assertEqual(theirs["both"]["popped"], ["first", "second"])
        reference = self.results(run_torchrun)
        for mine, other in zip((ours, theirs), reference):
            other.pop("store")
            self.assertEqual(mine, other)


if __name__ == "__main__":
    main()
