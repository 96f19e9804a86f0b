"""For tests whose ranks each write FOLDER/rank_N.json: runs such a script and gives back what they wrote."""
import json

# Nothing is fetched from the network, and nothing of the machine's own configuration counts.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "ACCELERATE_USE_CPU": None, "CUDA_VISIBLE_DEVICES": ""}


def facts_of_ranks(test, runner, script, *args, workers=2, ranks=None, options=()):
    """Runs `script FOLDER args…` under `runner` with this many workers; what each of the ranks wrote, in their order."""
    folder = test.tmp / runner.__name__
    while folder.exists():
        folder = folder.with_name(folder.name + "_")
    folder.mkdir()
    result = test.assert_success(runner([*options, f"--nproc-per-node={workers}", script, folder, *args], env=OFFLINE,
                                        timeout=240))
    written = sorted(file.name for file in folder.glob("rank_*.json"))
    test.assertEqual(written, [f"rank_{rank}.json" for rank in range(ranks or workers)], str(result))
    return [json.loads((folder / name).read_text()) for name in written]
