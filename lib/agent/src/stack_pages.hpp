#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <string>
#include <vector>

#include "atomic_file.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_reader.hpp"
#include "ddrun/logs/output.hpp"
#include "job.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// Where the ranks of this machine are: for the console before a stop, and for `ddrun stacks`. All is borrowed; for the
/// agent's thread.
class StackPages {
 public:
  StackPages(boost::asio::any_io_executor executor, Job& job, WorkerGroup& group, logs::Output& output)
      : job_(job), group_(group), output_(output), reader_(std::move(executor)) {}

  /// Reads, writes all threads to a file, shows the page on the console with the file's path, and calls `done`, unless
  /// give_up() came first. Not while is_reading().
  void async_show(const std::string& why, std::function<void(const inspect::StackPage&)> done);
  [[nodiscard]] bool is_reading() const { return awaited_ != 0; }
  /// Ends is_reading() at once. The page is shown when it is complete, if the job still runs.
  void give_up() { awaited_ = 0; }

  /// Tells this job from others: jobs in containers may share a directory and have the same PID.
  [[nodiscard]] const std::string& tag() const { return tag_; }

  using Targets = std::vector<inspect::StackReader::Target>;
  using Format = inspect::StackReader::Request::Format;
  /// All workers that were started.
  [[nodiscard]] Targets targets() const;
  /// Reads without showing anything; `done` gets the text in this format.
  void async_read(Targets ranks, Format format, std::function<void(std::string text)> done);

 private:
  Job& job_;
  WorkerGroup& group_;
  logs::Output& output_;
  inspect::StackReader reader_;
  const std::string tag_ = concat(random_number());
  unsigned last_ = 0;     ///< number of the last async_show()
  unsigned awaited_ = 0;  ///< of the one that is_reading(); 0: none
};

}  // namespace ddrun::agent
