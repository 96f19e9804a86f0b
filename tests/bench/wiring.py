"""All-reduce over TCP: between two hosts in namespaces beside iperf3, and on the loopback beside Open MPI, Gloo and torch."""

import json
import sys

from calling import Caller, Sizes, WARMUP, held, processors, seconds_of
from measuring import HERE, Comparison, Failure, Skip, in_turn, rates, wait_until
from reducing import KIB, MIB, rows_of

sys.path.insert(0, f"{HERE}/../net")
import bed as beds  # noqa: E402

STREAMS = (1, 2, 4)
SIZE, TIMES = 64 * MIB, 8
STORE_PORT, IPERF_PORT = "29500", "5201"


class Wire:
    """Two hosts with a wire between them, and a processor for each."""

    def __init__(self, bench, bed):
        self.bench, self.bed = bench, bed
        cpus = processors()
        self.processor = {host: held(cpus, rank) for rank, host in enumerate(bed.hosts)}

    def allreduce(self, streams):
        """Bytes per second that each host sends, and gets at the same time: the bus bandwidth of an all-reduce of 2 ranks."""
        report = self.bed.dir / "report.json"
        report.unlink(missing_ok=True)
        words = [self.bench.allreduce, "--backend=tcp", f"--streams={streams}", "-b", SIZE, "-e", SIZE, "-n", TIMES, "-w", WARMUP,
                 "-J", report]
        ranks = []
        for rank, host in enumerate(self.bed.hosts):
            env = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": self.bed[1].address,
                   "MASTER_PORT": STORE_PORT}
            ranks.append(host.start([*self.processor[host], *words], env=env))
        try:
            for started in ranks:
                if started.wait(60) != 0:
                    raise Failure(str(started))
        finally:
            self._clear(ranks)
        return SIZE / seconds_of(json.loads(report.read_text()))[SIZE, "in_place"]

    def iperf3(self, streams, both_ways):
        """Bytes per second that arrive: from the one host to the other, or each way while both send."""
        server, client = self.bed.hosts
        serving = server.start([*self.processor[server], "iperf3", "-s", "-1", "--forceflush", "-p", IPERF_PORT])
        try:
            wait_until(lambda: "listening" in serving.out or serving.ended(), 20, "iperf3's server")
            asked = client.run([*self.processor[client], "iperf3", "-c", server.address, "-p", IPERF_PORT, "-P", streams, "-t", "2",
                                "-O", "1", "-J", *(["--bidir"] if both_ways else [])])
            if asked.code != 0:
                raise Failure(str(asked))
            end = json.loads(asked.out)["end"]
        finally:
            self._clear([serving])
        ways = [end["sum_received"]] + ([end["sum_received_bidir_reverse"]] if both_ways else [])
        return sum(way["bits_per_second"] for way in ways) / 8 / len(ways)

    def _clear(self, ended):
        for started in ended:
            started.close()
            self.bed.started.remove(started)


def between_hosts(bench, note):
    if obstacle := beds.obstacle():
        return [Comparison("allreduce-tcp", "two hosts", [], skipped=obstacle)]
    rounds, rows = bench.count(5, 1), []
    with beds.Bed(2, clocks=False) as bed:
        wire = Wire(bench, bed)
        def missing():
            if wire.bed[1].run(["iperf3", "--version"]).code != 0:
                raise Skip("iperf3 is not installed (scripts/setup --rivals)")
        for streams in STREAMS:
            def iperf3(both_ways, count=streams):
                missing()
                return wire.iperf3(count, both_ways)
            samples, trouble = in_turn({
                "ddrun": (rounds, lambda count=streams: wire.allreduce(count)),
                "both ways": (rounds, lambda: iperf3(True)), "one way": (rounds, lambda: iperf3(False)),
            }, lambda text, count=streams: note(f"{count} streams {text}"))
            rows += wire_rows(streams, samples, trouble)
    return rows


def wire_rows(streams, samples, trouble):
    """An all-reduce of 2 ranks sends all its bytes both ways at the same time: the same as iperf3 --bidir, way for way. One way
    alone has both processors for itself, so that its rate is compared with what we send both ways together."""
    rows = []
    for name, factor, what, limits in (("both ways", 1, "each way", (0.9, 0.7)), ("one way", 2, "both ways together", (None, None))):
        ours = [rate * factor for rate in samples["ddrun"]]
        rows.append(rates("allreduce-tcp", f"two hosts, {streams} streams, {what}", ours, f"iperf3, {name}", samples[name], *limits,
                          skipped="" if samples[name] else trouble.get(name, "not measured")))
    return rows


LOOPBACK = (Sizes(8, 8, 2, 200), Sizes(64 * KIB, MIB, 16, 50), Sizes(64 * MIB, 64 * MIB, 2, 4))


def on_loopback(bench, note, spans=LOOPBACK):
    sides = Caller(bench, 2).sides(("ddrun tcp", "openmpi tcp", "gloo", "torch"), bench.count(5, 1), spans)
    samples, trouble = in_turn(sides, lambda text: note(f"loopback {text}"))
    return rows_of("allreduce-tcp", samples, trouble, "ddrun tcp", "in_place", lambda rival, size: (1, None), "loopback")


def allreduce_tcp(bench, note):
    """2 ranks on 2 processors over TCP: two hosts in namespaces against iperf3, and the loopback against MPI, Gloo and torch."""
    return between_hosts(bench, note) + on_loopback(bench, note)
