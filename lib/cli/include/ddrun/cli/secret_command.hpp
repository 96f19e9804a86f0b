#pragma once

namespace ddrun::cli {

/// `ddrun secret new`: make the secret by which the agents of a job know each other.
struct SecretNew {
  bool print = false;  ///< only print one; write no file
};

}  // namespace ddrun::cli
