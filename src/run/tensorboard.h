#pragma once
// What of a run goes into TensorBoard's event files (io/event_file.h).

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/event_file.h"

namespace lockstep {

struct Config;

/// Every key of the configuration that can change what is trained, and the devices; lists as
/// strings.
HyperParameters hyper_parameters(const Config& config, const std::string& devices);

/// A number of a line of scalars.json, named as TensorBoard groups curves.
struct Scalar {
  std::string tag;  // "train/loss", "val/mIoU"
  std::int64_t step = 0;
  double value = 0;
};

/// The numbers of one such line; undefined ones (null) are left out.
std::vector<Scalar> scalars_of(const nlohmann::ordered_json& line);

/// All lines' of the file, in their order. A last line that is cut off is passed over. Throws
/// DataError when the file cannot be read.
std::vector<Scalar> read_scalars(const std::filesystem::path& scalars);

}  // namespace lockstep
