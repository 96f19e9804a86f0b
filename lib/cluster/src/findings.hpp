#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/cluster/detect.hpp"

namespace ddrun::cluster {

/// What a scheme's function may look at.
struct Surroundings {
  const Environment& variables;
  const ReadFile& read_file;
  const Machine& machine;
  bool under_mpi = false;  ///< mpirun started this process, whatever a batch system says
};

/// Nothing (not there), or what was said, or a contradiction within it.
/// Its evidence is made from the facts when all are put together.
using Found = Result<std::optional<Detected>>;

Found find_slurm(const Surroundings& around);
Found find_open_mpi(const Surroundings& around);
Found find_mpich(const Surroundings& around);
Found find_flux(const Surroundings& around);
Found find_pbs(const Surroundings& around);
Found find_lsf(const Surroundings& around);
Found find_sge(const Surroundings& around);
Found find_torchrun(const Surroundings& around);
Found find_kubernetes(const Surroundings& around);
Found find_skypilot(const Surroundings& around);
Found find_dstack(const Surroundings& around);
Found find_sagemaker(const Surroundings& around);
Found find_azureml(const Surroundings& around);
Found find_volcano(const Surroundings& around);
Found find_horovod(const Surroundings& around);
Found find_tpu(const Surroundings& around);
Found find_torchx(const Surroundings& around);
Found find_plain(const Surroundings& around);

// Helpers of all of them.

/// A number of the variable, in [low, high]. A variable with anything else in it is a failure that names it.
[[nodiscard]] Result<Maybe<int>> number_of(const Environment& variables, std::string_view name, int low, int high);
/// The first of `names` that is set.
[[nodiscard]] Result<Maybe<int>> first_number_of(const Environment& variables,
                                                 const std::vector<std::string_view>& names, int low, int high);
[[nodiscard]] Maybe<std::string> text_of(const Environment& variables, std::string_view name);
[[nodiscard]] Maybe<std::string> first_text_of(const Environment& variables,
                                               const std::vector<std::string_view>& names);

/// "A=2 and B=n[1-3], which names 3, contradict each other"
[[nodiscard]] tl::unexpected<Error> contradiction(std::string_view one, std::string_view other,
                                                  std::string_view way_out);

/// Without what follows the first dot; addresses stay whole.
[[nodiscard]] std::string_view short_name(std::string_view host);
/// Where this machine stands in the list: by name, short name, or address of an interface.
[[nodiscard]] std::optional<int> position_of(const Machine& machine, const std::vector<std::string>& hosts);
/// Without doubles, in order of first appearance.
[[nodiscard]] std::vector<std::string> unique(const std::vector<std::string>& hosts);
/// Letters, digits and "._-" stay; at most 100 of them.
[[nodiscard]] std::string as_job_id(std::string_view text);
[[nodiscard]] std::string endpoint_text(const Endpoint& endpoint);
/// "n1:20001, n1:20002": shows coordinators and hosts; many are cut short.
[[nodiscard]] std::string short_list(const std::vector<std::string>& words);

inline constexpr int most_nodes = 1'000'000;

}  // namespace ddrun::cluster
