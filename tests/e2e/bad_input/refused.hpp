#pragma once

#include "../job.hpp"

namespace ddrun::test {

/// One line on stderr that begins as all of ours do, nothing on stdout.
inline void check_refused(const Outcome& outcome, int code) {
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == code);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind("ddrun: error: ", 0) == 0);
  CHECK(count(outcome.err, "\n") == 1);
}

}  // namespace ddrun::test
