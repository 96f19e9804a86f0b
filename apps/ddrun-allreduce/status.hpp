#pragma once

namespace ddrun::allreduce {

// What the program ends with (docs/allreduce.md).
inline constexpr int kRight = 0;
inline constexpr int kFailed = 1;          ///< a wrong element or a lost rank; no memory or no connections
inline constexpr int kUsage = 2;           ///< options, environment, ranks that differ
inline constexpr int kTooSlow = 3;         ///< right, but a threshold was missed
inline constexpr int kLate = 4;            ///< a call did not end in time
inline constexpr int kCannotRunHere = 77;  ///< the chosen back end lacks a device or a library; "skipped" for ctest

}  // namespace ddrun::allreduce
