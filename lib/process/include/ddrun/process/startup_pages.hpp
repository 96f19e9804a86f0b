#pragma once

#include "ddrun/base/duration.hpp"

namespace ddrun::process {

/// Once a process of ddrun's has run for this long it calls drop_startup_pages(): for a short job it does not pay.
constexpr Milliseconds settle_time{200};

/// Whether a file of this type (statfs's f_type) that is replaced while it runs can be read on. On network file
/// systems, through FUSE and on unknown ones, code that has to be read again may be gone: SIGBUS.
[[nodiscard]] bool keeps_replaced_programs(long file_system);

/// Gives back the pages of the program's file that this process has mapped, most of which only the start needs. Pages
/// that are used again come from the page cache. Does nothing where keeps_replaced_programs() is false, or in a
/// debugger.
void drop_startup_pages();

}  // namespace ddrun::process
