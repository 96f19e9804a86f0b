#include "ddrun/cluster/slurm_munge.hpp"

#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "findings.hpp"
#include "slurm_variables.hpp"

namespace ddrun::cluster {

namespace {

/// Where slurm.conf is if no variable says so: as slurmd got it from Slurm's controller, of packages, of older ones.
constexpr const char* usual_places[] = {"/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf",
                                        "/etc/slurm-llnl/slurm.conf"};

bool same_word(std::string_view one, std::string_view lower) {
  if (one.size() != lower.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const char c = one[i] >= 'A' && one[i] <= 'Z' ? static_cast<char>(one[i] - 'A' + 'a') : one[i];
    if (c != lower[i]) return false;
  }
  return true;
}

/// Of a line "AuthInfo=ttl=60,socket=/run/munge/slurm"; keys are written as one likes.
std::string socket_in(std::string_view configuration) {
  std::string socket;
  for (const std::string& line : split(configuration, '\n')) {
    const std::string_view text = trim(std::string_view(line).substr(0, line.find('#')));
    const auto equals = text.find('=');
    if (equals == std::string_view::npos || !same_word(trim(text.substr(0, equals)), "authinfo")) continue;
    for (const std::string& part : split(trim(text.substr(equals + 1)), ',')) {
      const std::string_view word = trim(part);
      if (word.starts_with("socket=")) socket = word.substr(word.find('=') + 1);
    }
  }
  return socket;
}

}  // namespace

std::optional<SlurmMunge> find_slurm_munge(const Environment& variables, const ReadFile& read_file) {
  const auto job = first_text_of(variables, slurm_job_names);
  if (!job) return std::nullopt;
  if (const auto file = text_of(variables, "SLURM_CONF")) {
    return SlurmMunge{job->value, socket_in(read_file(file->value).value_or(""))};
  }
  for (const char* path : usual_places) {
    if (const auto configuration = read_file(path)) return SlurmMunge{job->value, socket_in(*configuration)};
  }
  return SlurmMunge{job->value, ""};
}

}  // namespace ddrun::cluster
