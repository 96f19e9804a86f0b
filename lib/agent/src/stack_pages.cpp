#include "stack_pages.hpp"

#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::agent {

StackPages::Targets StackPages::targets() const {
  Targets targets;
  for (const Worker& worker : group_.workers()) {
    if (worker.end.pid != 0) targets.push_back({worker.end.rank, worker.child ? worker.end.pid : 0});
  }
  return targets;
}

void StackPages::async_read(Targets ranks, Format format, std::function<void(std::string text)> done) {
  reader_.async_read({"", std::move(ranks), "", format, job_.prepared.directory},
                     [done = std::move(done)](auto answer) { done(std::move(answer.text)); });
}

void StackPages::async_show(const std::string& why, std::function<void(const inspect::StackPage&)> done) {
  awaited_ = ++last_;
  // Without log files the page is a temporary file, which stays.
  const bool has_logs = !output_.run_dir().empty();
  const std::string prefix = has_logs ? output_.attempt_dir() + "/stacks-"
                                      : concat(variable("TMPDIR").value_or("/tmp"), "/ddrun-stacks-", tag_, "-");
  inspect::StackReader::Request request{why, targets(), prefix, Format::text, job_.prepared.directory};
  reader_.async_read(std::move(request), [this, number = last_, done = std::move(done)](const auto& answer) {
    say(Level::notice, concat(answer.text, "  all threads: ", answer.file.empty() ? answer.file_error : answer.file));
    if (!answer.file.empty()) job_.record.result().stack_files.push_back(answer.file);
    if (awaited_ != number) return;
    awaited_ = 0;
    done(answer.page);
  });
}

}  // namespace ddrun::agent
