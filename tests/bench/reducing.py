"""All-reduce and the other collectives in one machine's memory, beside MPI, Gloo, torch and the memory itself."""

from calling import Caller, Sizes
from measuring import Comparison, in_turn

KIB, MIB = 1 << 10, 1 << 20
# A call of a few bytes takes so little time that, of fewer calls, another process' time slice would be most.
MANY = 20_000
COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")
PLACE = {"in_place": "in place", "out_of_place": "out of place"}


def size_text(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def rows_of(benchmark, samples, trouble, ours, placement, limits, label=""):
    """A row for each size and rival. `limits(rival, size)` is its goal and floor, how many times slower it is."""
    rows, said = [], set()
    for key in sorted(key for key in samples[ours][0] if key[1] == placement):
        size = key[0]
        own = [sample[key] for sample in samples[ours]]
        quantity = ", ".join(filter(None, (label, size_text(size), PLACE[placement], ours.partition(" ")[2])))
        for rival in [name for name in samples if not name.startswith(("ddrun", "roofline"))]:
            theirs = [sample[key] for sample in samples[rival] if key in sample]
            if not theirs and (samples[rival] or rival in said):
                continue  # it has no such call, or is not here, which is said once
            said.add(rival)
            goal, floor = limits(rival, size)
            rows.append(Comparison(benchmark, quantity, own, rival, theirs, goal, floor, scale=1e6, unit="us",
                                   skipped="" if theirs else trouble.get(rival, "not measured")))
    return rows


def roofline_rows(samples, ours, placement, size, ranks, goal, floor):
    """What the memory allows: each rank's bytes are read once and written once, so a call of `size` bytes takes
    2 * ranks * size / B seconds at least, where B is what all ranks together read and write each second. The goal is
    for B by memcpy; updating an array where it is asks least of memory and so finds the largest B."""
    own = [sample[size, placement] for sample in samples[ours]]
    text = f"{size_text(size)}, {PLACE[placement]}, {ours.partition(' ')[2]}"
    rows = []
    for kind, limits in (("copy", (goal, floor)), ("update", (None, None))):
        least = [2 * ranks * size / memory[f"{kind}_all"] for memory in samples["roofline"]]
        rows.append(Comparison("allreduce", text, own, f"roofline, {kind}", least, *limits, scale=1e6, unit="us"))
    return rows


def memory_rows(samples):
    """What one process and all of them read and write each second."""
    return [Comparison("allreduce", f"memory, {kind}: all together", [memory[f"{kind}_all"] for memory in samples["roofline"]],
                       "one process", [memory[f"{kind}_one"] for memory in samples["roofline"]], scale=1e-9, unit="GB/s")
            for kind in ("copy", "triad", "update")]


ALLREDUCE = (Sizes(8, 2 * KIB, 16, MANY), Sizes(32 * KIB, 512 * KIB, 16, 100), Sizes(8 * MIB, 128 * MIB, 16, 8))
ALLREDUCE_MANY = (Sizes(8, 8, 2, 100), Sizes(4 * KIB, 64 * KIB, 16, 30), Sizes(MIB, 16 * MIB, 16, 5))
OTHERS = (Sizes(KIB, KIB, 2, MANY), Sizes(64 * KIB, MIB, 16, 50), Sizes(16 * MIB, 16 * MIB, 2, 8))


def allreduce(bench, note, spans=ALLREDUCE):
    """2 ranks on 2 processors, float sum, 8 B to 128 MiB: in place in ddrun's buffers, out of place in private ones."""
    caller, rounds = Caller(bench, 2), bench.count(7, 1)
    sides = caller.sides(("ddrun shared", "ddrun private", "openmpi", "mpich", "gloo", "torch"), rounds, spans)
    samples, trouble = in_turn({**sides, "roofline": (rounds, caller.roofline)}, note)
    smallest, largest = spans[0].first, spans[-1].last
    def in_place(rival, size):
        known = {largest: (6, 3), smallest: (1, 1 / 1.3)}
        return known.get(size, (1, None)) if rival == "openmpi" else (1, None)
    def out_of_place(rival, size):
        return (1.4, 1.1) if rival == "openmpi" and size == largest else in_place(rival, size)
    rows = rows_of("allreduce", samples, trouble, "ddrun shared", "in_place", in_place)
    rows += rows_of("allreduce", samples, trouble, "ddrun private", "out_of_place", out_of_place)
    rows += roofline_rows(samples, "ddrun shared", "in_place", largest, 2, 0.9, 0.7)
    rows += roofline_rows(samples, "ddrun private", "out_of_place", largest, 2, None, None)
    return rows + memory_rows(samples)


def allreduce_many(bench, note, spans=ALLREDUCE_MANY):
    """8 ranks on 2 processors, float sum, 8 B to 16 MiB: in place in ddrun's buffers, out of place in private ones."""
    sides = Caller(bench, 8, limit=30).sides(("ddrun shared", "ddrun private", "openmpi", "mpich", "gloo"), bench.count(5, 1), spans)
    samples, trouble = in_turn(sides, note)
    def limits(rival, size):
        return (3, None) if rival == "openmpi" else (1, None)
    return rows_of("allreduce-many", samples, trouble, "ddrun shared", "in_place", limits) + \
        rows_of("allreduce-many", samples, trouble, "ddrun private", "out_of_place", limits)


def collectives(bench, note, spans=OTHERS, names=COLLECTIVES):
    """2 ranks on 2 processors, the other collectives, 1 KiB to 16 MiB: in ddrun's buffers and in private ones."""
    caller, rounds, rows = Caller(bench, 2), bench.count(3, 1), []
    for collective in names:
        sides = caller.sides(("ddrun shared", "ddrun private", "openmpi", "mpich"), rounds, spans, collective)
        samples, trouble = in_turn(sides, lambda text, which=collective: note(f"{which} {text}"))
        # MPI's broadcast has one buffer: out of place, ours would be the only one with a copy at the root.
        private = "in_place" if collective == "broadcast" else "out_of_place"
        for ours, placement in (("ddrun shared", "in_place"), ("ddrun private", private)):
            rows += rows_of("collectives", samples, trouble, ours, placement, lambda rival, size: (1, None), collective)
    return rows
