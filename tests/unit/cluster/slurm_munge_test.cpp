#include "ddrun/cluster/slurm_munge.hpp"

#include "surroundings.hpp"

using namespace ddrun;
using namespace ddrun::cluster;
using namespace ddrun::cluster::test;

namespace {

std::optional<SlurmMunge> munge_in(const Place& place) {
  std::vector<const char*> entries;
  for (const std::string& variable : place.variables) entries.push_back(variable.c_str());
  entries.push_back(nullptr);
  return find_slurm_munge(Environment(entries.data()), [&](const std::string& path) -> std::optional<std::string> {
    const auto found = place.files.find(path);
    return found == place.files.end() ? std::nullopt : std::optional(found->second);
  });
}

/// Of a slurm.conf with this text.
std::string socket_of(const std::string& text) {
  const auto found = munge_in({.variables = {"SLURM_JOB_ID=12"}, .files = {{"/etc/slurm/slurm.conf", text}}});
  return found ? found->socket : "there is none";
}

}  // namespace

TEST_CASE("outside of a Slurm job MUNGE tells nobody apart") {
  CHECK_FALSE(munge_in({}));
  CHECK_FALSE(munge_in({.variables = {"SLURM_JOB_ID=", "SLURM_CONF=/c"}, .files = {{"/c", "AuthInfo=socket=/s"}}}));
}

TEST_CASE("the job's number is Slurm's") {
  CHECK(munge_in({.variables = {"SLURM_JOB_ID=12", "SLURM_JOBID=13"}}).value_or(SlurmMunge{}).job == "12");
  CHECK(munge_in({.variables = {"SLURM_JOBID=13"}}).value_or(SlurmMunge{}).job == "13");
}

TEST_CASE("Slurm's own munged is where slurm.conf says") {
  CHECK(socket_of("") == "");
  CHECK(socket_of("AuthType=auth/munge\nAuthInfo=socket=/run/slurm/munge\nCredType=cred/munge\n") ==
        "/run/slurm/munge");
  CHECK(socket_of("  authinfo = ttl=60, socket=/run/m # of ours\r\n") == "/run/m");
  CHECK(socket_of("AuthInfo=cred_expire=120") == "");
  CHECK(socket_of("#AuthInfo=socket=/old\nAuthAltInfo=socket=/jwt\nAuthInfo=ttl=60") == "");
  CHECK(socket_of("AuthInfo\nAuthInfo=\n=socket=/x\nAuthInfo=socket=") == "");
}

TEST_CASE("the slurm.conf of the job counts, else the first of the usual ones") {
  const std::map<std::string, std::string> files{{"/job.conf", "AuthInfo=socket=/job"},
                                                 {"/run/slurm/conf/slurm.conf", "AuthInfo=socket=/configless"},
                                                 {"/etc/slurm/slurm.conf", "AuthInfo=socket=/etc"}};
  const auto socket = [&](const std::vector<std::string>& variables) {
    return munge_in({.variables = variables, .files = files}).value_or(SlurmMunge{}).socket;
  };
  CHECK(socket({"SLURM_JOB_ID=1", "SLURM_CONF=/job.conf"}) == "/job");
  CHECK(socket({"SLURM_JOB_ID=1", "SLURM_CONF=/gone.conf"}) == "");
  CHECK(socket({"SLURM_JOB_ID=1"}) == "/configless");
}
