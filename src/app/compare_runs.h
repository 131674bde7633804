#pragma once
// Training the runs of a comparison and reporting on them, as `compare` and `quickstart` do.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "app/command.h"

namespace lockstep {

struct CompareArguments {
  CommonArguments common;
  std::vector<std::filesystem::path> inputs;  // one CONFIG, or run folders
  std::vector<std::string> modes;             // --modes local,sync,ghost
  std::vector<std::int64_t> images;           // --images-per-device 1,2,4; empty: no curve
  int seeds = 3;                              // --seeds N: how many, from
  int first_seed = 0;                         // --first-seed N
  bool verbose = false;                       // --verbose: the runs' own lines, too
  bool no_images = false;                     // --no-images: none in report.html
  bool other_data = false;                    // --other-data
  bool tables = true;                         // print them; else they are in the files alone
};

struct ComparedModes {
  int exit_code = 0;
  std::string answer = {};  // its first lines, without tables all of them; in process 0
};

/// Trains the runs of the configuration, inputs.front(), that are missing, shows the table, and
/// writes the comparison into its folder. Throws where no run succeeded.
ComparedModes train_and_compare(const CompareArguments& arguments);

}  // namespace lockstep
