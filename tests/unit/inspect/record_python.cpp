// Saves what PythonReader reads of a process, for tests with versions of Python that are not installed:
//   mkdir /tmp/job; cp tests/unit/inspect/recorded/hang.py /tmp/job; python3.14 /tmp/job/hang.py &
//   ddrun_record_python $! tests/unit/inspect/recorded/python3.14 [ROOT]
// ROOT is left out of the paths of modules: the root directory of the process if it is not ours.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "python_frames.hpp"
#include "recorded_memory.hpp"

using namespace ddrun;
using namespace ddrun::inspect;

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string root = argc > 3 ? argv[3] : "";
  const pid_t pid = std::atoi(argv[1]);
  const auto memory = ProcessMemory::open(pid);
  if (!memory) return 1;
  const RecordingMemory recording(*memory);
  const auto mappings = read_mappings(pid);
  const auto reader = PythonReader::find(recording, mappings);
  if (!reader || !reader->unsupported_reason().empty()) return 1;
  for (const auto& [tid, stack] : reader->read(recording)) {
    for (const auto& frame : stack.frames)
      std::printf("%d %s %s:%d\n", tid, frame.function.c_str(), frame.file.c_str(), frame.line);
  }

  std::string file;
  for (const Mapping& mapping : mappings) {
    std::string path = mapping.module->path;
    if (path.find('/') == std::string::npos) continue;
    if (path.starts_with(root)) path.erase(0, root.size());
    char line[128];
    std::snprintf(line, sizeof line, "%lx-%lx r-%cp %lx 00:00 0 ", mapping.start, mapping.end,
                  mapping.executable ? 'x' : '-', mapping.offset);
    file += line + path + '\n';
  }
  file += '\n';
  std::uint64_t next = 0;
  std::size_t size_at = 0;
  const auto append = [&](std::uint64_t number) { file.append(reinterpret_cast<const char*>(&number), sizeof number); };
  for (const auto& [address, byte] : recording.bytes()) {
    if (size_at == 0 || address != next) {
      append(address);
      size_at = file.size();
      append(0);
    }
    file += byte;
    next = address + 1;
    const std::uint64_t size = file.size() - size_at - sizeof size;
    file.replace(size_at, sizeof size, reinterpret_cast<const char*>(&size), sizeof size);
  }
  std::ofstream(argv[2], std::ios::binary) << file;
}
