#include "ddrun/worker_env/worker_argv.hpp"

#include <algorithm>
#include <string_view>

namespace ddrun::worker_env {

namespace {

/// What torchrun's --run-path does to a script, in Python without PyTorch: an exception goes into the error file as
/// from
/// @record, and a worker that has come to its end waits until all of its machine have, so that none tears down what the
/// others still use. They count themselves at a barrier of the agent's store (docs/store-protocol.md).
constexpr std::string_view run_path =
    R"(import faulthandler, json, os, pkgutil, runpy, socket, struct, sys, time, traceback

def record(error):
    if not environment.get("TORCHELASTIC_ERROR_FILE"):
        return
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    with open(environment["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)

def wait_for_all():
    workers = int(environment["LOCAL_WORLD_SIZE"])
    if workers == 1 or environment["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        return
    key = b"ddrun/returned/" + environment["GROUP_RANK"].encode()
    barrier = b"\x12" + struct.pack("<Q", len(key)) + key + struct.pack("<q", workers)
    try:
        with socket.create_connection((environment["MASTER_ADDR"], int(environment["MASTER_PORT"])), 60) as store:
            store.settimeout(None)
            store.sendall(b"\x00\xce\xf7\x85\x3c" + barrier)
            store.recv(1)
    except OSError:
        pass

environment = dict(os.environ)
sys.argv = sys.argv[1:]
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
    if pkgutil.get_importer(sys.argv[0]) is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
try:
    faulthandler.enable(all_threads=True)
except Exception:
    pass
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code not in (None, 0):
        raise
except Exception as error:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in ("<string>", "<frozen runpy>", runpy.__file__):
        trace = trace.tb_next
    error.__traceback__ = trace
    record(error)
    sys.excepthook(type(error), error, trace)
    sys.exit(1)
wait_for_all()
)";

constexpr std::string_view rank_mark = "${rank}";
constexpr std::string_view local_rank_mark = "${local_rank}";

std::string substitute(std::string_view text, int rank, int local_rank) {
  std::string result;
  while (true) {
    const std::size_t at = text.find("${");
    if (at == std::string_view::npos) return result.append(text);
    result.append(text.substr(0, at));
    text.remove_prefix(at);
    if (text.starts_with(rank_mark)) {
      result += std::to_string(rank);
      text.remove_prefix(rank_mark.size());
    } else if (text.starts_with(local_rank_mark)) {
      result += std::to_string(local_rank);
      text.remove_prefix(local_rank_mark.size());
    } else {
      result += "${";
      text.remove_prefix(2);
    }
  }
}

}  // namespace

std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank, const std::string& python) {
  std::vector<std::string> argv;
  argv.reserve(program.args.size() + 5);
  if (program.kind != ProgramKind::executable) {
    argv.push_back(python);
    argv.emplace_back("-u");
  }
  if (program.kind == ProgramKind::python_module) argv.emplace_back("-m");
  if (program.kind == ProgramKind::python_function) argv.insert(argv.end(), {"-c", std::string(run_path)});
  argv.push_back(program.name);
  for (const std::string& arg : program.args) argv.push_back(substitute(arg, rank, local_rank));
  return argv;
}

bool argv_depends_on_rank(const ProgramSpec& program) {
  return std::any_of(program.args.begin(), program.args.end(), [](const std::string& arg) {
    return arg.find(rank_mark) != std::string::npos || arg.find(local_rank_mark) != std::string::npos;
  });
}

}  // namespace ddrun::worker_env
