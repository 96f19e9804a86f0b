#pragma once

#include <gloo/rendezvous/store.h>

#include <string>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// A group's store as Gloo asks for one. What fails is thrown, as Gloo expects: gloo::IoException with our words.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  /// `group` outlives this object.
  GlooStore(const Group& group, Deadline deadline) : group_(group), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;

 private:
  [[nodiscard]] std::string name_of(const std::string& key) const { return group_.prefix + "gloo/" + key; }
  void wait_until(const std::vector<std::string>& keys, Deadline deadline);

  const Group& group_;
  Deadline deadline_;
};

}  // namespace ddrun::collectives
