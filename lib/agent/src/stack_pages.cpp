#include "stack_pages.hpp"

#include <utility>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/inspect/stack_page.hpp"

namespace ddrun::agent {

StackPages::Targets StackPages::targets() const {
  Targets targets;
  for (const Worker& worker : group_.workers()) {
    if (worker.end.pid != 0) targets.push_back({worker.end.rank, worker.child ? worker.end.pid : 0});
  }
  return targets;
}

void StackPages::async_read(Targets ranks, bool all_threads, std::function<void(const inspect::StackPage&)> done) {
  reader_.async_read({"", std::move(ranks), "", all_threads},
                     [done = std::move(done)](const auto& answer) { done(answer.page); });
}

void StackPages::async_show(const std::string& why, std::function<void(const inspect::StackPage&)> done) {
  awaited_ = ++last_;
  // Without log files the page is a temporary file, which stays.
  const bool has_logs = !output_.run_dir().empty();
  const std::string prefix = has_logs ? output_.attempt_dir() + "/stacks-"
                                      : concat(variable("TMPDIR").value_or("/tmp"), "/ddrun-stacks-",
                                               job_.context.shared->started_pid.load(), "-");
  reader_.async_read({why, targets(), prefix}, [this, number = last_, done = std::move(done)](const auto& answer) {
    std::string text = inspect::short_text(answer.page, job_.prepared.directory);
    text += concat("  all threads: ", answer.file.empty() ? answer.file_error : answer.file);
    say(Level::notice, text);
    if (!answer.file.empty()) job_.record.result().stack_files.push_back(answer.file);
    if (awaited_ != number) return;
    awaited_ = 0;
    done(answer.page);
  });
}

}  // namespace ddrun::agent
