#pragma once

#include <string>

#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cli {

enum class ColorMode { automatic, always, never };

/// A LaunchSpec in the making, with what options say beside it.
struct Draft {
  LaunchSpec spec;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  int verbose = 0;
  int quiet = 0;
  ColorMode color = ColorMode::automatic;
  // Taken from torchrun's command lines, checked, and of no further effect or translated later.
  std::string start_method = "spawn";
  double monitor_interval = 0.1;
  std::string logs_specs = "default";
  bool use_env = false;
  std::string numa_binding;
  std::string env_detect = "auto";  ///< one of cluster::detect_words
};

}  // namespace ddrun::cli
