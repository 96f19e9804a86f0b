"""What the benchmarks make of samples and reports, without running any program."""

import unittest

import calling
import gpu_reducing
import reducing
import wiring
from measuring import Comparison, Failure, in_turn, Skip


def report(wrong=0, **more):
    return {"ok": True, **more, "results": [
        {"size": 8, "out_of_place": {"time_us": 2.0, "wrong": 0}, "in_place": {"time_us": 1.5, "wrong": wrong}}]}


class Reports(unittest.TestCase):
    def test_times_are_seconds_by_size_and_placement(self):
        self.assertEqual(calling.seconds_of(report()), {(8, "out_of_place"): 2e-6, (8, "in_place"): 1.5e-6})

    def test_what_is_lacking_is_left_out(self):
        one = report()
        one["results"][0]["in_place"] = {"time_us": None, "wrong": None}
        self.assertEqual(list(calling.seconds_of(one)), [(8, "out_of_place")])

    def test_a_wrong_or_unchecked_result_and_an_early_end_are_failures(self):
        for bad in (report(wrong=1), report(wrong=None), {**report(), "ok": False}, report(error="rank 1 is gone")):
            with self.assertRaises(Failure):
                calling.seconds_of(bad)


class Rows(unittest.TestCase):
    def rows(self, samples, trouble=None):
        return reducing.rows_of("b", samples, trouble or {}, "ddrun shared", "in_place", lambda rival, size: (2, 1))

    def test_a_ratio_is_how_much_longer_the_rival_takes(self):
        key = (8, "in_place")
        row, = self.rows({"ddrun shared": [{key: 1e-6}, {key: 3e-6}, {key: 2e-6}], "mpich": [{key: 5e-6}]})
        self.assertAlmostEqual(row.ratio, 2.5)
        self.assertEqual((row.rival, row.quantity, row.verdict()), ("mpich", "8 B, in place, shared", "goal met"))

    def test_a_rival_that_is_not_there_is_said_once_and_one_without_the_call_never(self):
        keys = [(8, "in_place"), (16, "in_place")]
        ours = [{key: 1e-6 for key in keys}]
        rows = self.rows({"ddrun shared": ours, "gone": [], "other": [{(8, "out_of_place"): 1e-6}]}, {"gone": "no gone"})
        self.assertEqual([(row.rival, row.skipped) for row in rows], [("gone", "no gone")])

    def test_the_roofline_is_twice_the_bytes_of_all_ranks(self):
        memory = {"copy_all": 4e9, "update_all": 8e9}
        samples = {"ddrun shared": [{(1_000_000_000, "in_place"): 2.0}], "roofline": [memory]}
        copy, update = reducing.roofline_rows(samples, "ddrun shared", "in_place", 1_000_000_000, 2, 0.9, 0.7)
        self.assertAlmostEqual(copy.ratio, 0.5)
        self.assertAlmostEqual(update.ratio, 0.25)
        self.assertEqual((copy.verdict(), update.verdict()), ("MISSED", "-"))

    def test_rates_compare_the_other_way_round(self):
        each, both = wiring.wire_rows(2, {"ddrun": [0.8e9], "both ways": [1e9], "one way": [1.6e9]}, {})
        self.assertAlmostEqual(each.ratio, 0.8)
        self.assertAlmostEqual(both.ratio, 1.0)
        self.assertEqual(each.verdict(), "floor met")

    def test_one_rank_on_a_gpu_is_a_copy_and_in_place_nothing(self):
        one = report()
        one["results"][0].update(size=1_000_000, out_of_place={"time_us": 1.0, "wrong": 0, "lacking": None},
                                 in_place={"time_us": None, "wrong": None, "lacking": "nothing to do"})
        rows = {row.quantity: row for row in gpu_reducing.one_rank_rows([one, one])}
        self.assertEqual([row.skipped for row in rows.values()].count("nothing to do"), 1)
        self.assertEqual(gpu_reducing.copy_rates([one, one]), [2e12, 2e12])

    def test_versions_of_nccl(self):
        self.assertLess(gpu_reducing.nccl_version({"details": "NCCL 2.28.9, NVIDIA H200"}), gpu_reducing.SHARING_NCCL)
        self.assertGreaterEqual(gpu_reducing.nccl_version({"details": "NCCL 2.30.7, x"}), gpu_reducing.SHARING_NCCL)

    def test_limits(self):
        self.assertEqual(Comparison("b", "", [1], goal=5, at_most=True, ratio=5).verdict(), "goal met")
        self.assertEqual(Comparison("b", "", [1], goal=5, floor=4, ratio=3.9).verdict(), "MISSED")


class Turns(unittest.TestCase):
    def test_sides_alternate_and_one_in_trouble_drops_out(self):
        seen = []
        def side(name, error=None):
            def function():
                seen.append(name)
                if error:
                    raise error
                return name
            return 2, function
        samples, trouble = in_turn({"ddrun": side("ddrun"), "absent": side("absent", Skip("no absent")), "x": side("x")}, settle=0)
        self.assertEqual(seen, ["ddrun", "absent", "x", "ddrun", "x"])
        self.assertEqual((samples["x"], trouble), (["x", "x"], {"absent": "no absent"}))

    def test_our_own_failure_ends_it(self):
        def fail():
            raise Failure("wrong")
        with self.assertRaises(Failure):
            in_turn({"ddrun shared": (1, fail)}, settle=0)


if __name__ == "__main__":
    unittest.main()
