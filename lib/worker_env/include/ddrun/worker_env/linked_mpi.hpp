#pragma once

#include <string>

namespace ddrun::worker_env {

/// The MPI library that a program asks its dynamic loader for, such as "libmpi.so.40". Empty if it asks for none, or
/// is no 64-bit ELF file of this machine's byte order. `file` may hold anything: what is no good ELF asks for nothing.
/// Only the program itself is looked at, not the libraries it names. Reads a few hundred bytes; blocks as the file
/// system does.
[[nodiscard]] std::string linked_mpi(const std::string& file);

}  // namespace ddrun::worker_env
