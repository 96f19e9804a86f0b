#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/byte_pipe.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/pmi/pmix_server.hpp"
#include "ddrun/process/launcher.hpp"

namespace ddrun::pmi {

/// The program ddrun-pmix (apps/ddrun-pmix), which this program carries: a child that is no worker, and dies with this
/// process. All on the executor's thread; only start() blocks, as Launcher::spawn() does. The launcher is borrowed.
class PmixHelper {
 public:
  /// Called from within the event loop or drain().
  struct Handlers {
    std::function<void(pmix_event::Frame frame)> frame;
    std::function<void(std::string why)> lost;        ///< once; not after close()
    std::function<void(std::string_view line)> said;  ///< on its standard output and error
  };
  PmixHelper(boost::asio::any_io_executor executor, process::Launcher& launcher, Handlers handlers);
  PmixHelper(const PmixHelper&) = delete;
  PmixHelper& operator=(const PmixHelper&) = delete;

  /// Once. `library`: of OpenPMIx, a path or a name for the loader. `directory`: private, for the helper's files.
  /// `label`: as PmixServer's. Fails with `unavailable`.
  Result<void> start(const std::string& library, const std::string& directory, const std::string& label,
                     std::vector<std::string> environment);
  /// Queues a frame; ignored when there is no helper.
  void send(std::string_view frame);
  /// Passes on what the helper has sent so far.
  void drain();
  /// Kills it.
  void close();

 private:
  Result<pid_t> spawn(process::SpawnPlan plan);
  void take_frames(std::string_view bytes);
  void take_output(std::string_view bytes);
  void lose(std::string why);

  process::Launcher& launcher_;
  Handlers handlers_;
  ByteReader in_;
  ByteWriter out_;
  ByteReader output_;
  pid_t pid_ = 0;  ///< 0: none
  std::string received_, text_;
};

}  // namespace ddrun::pmi
