#pragma once
// Event files of TensorBoard: records of a length, a payload (the protocol buffer `Event`) and a
// checksum of each (tensorflow/core/lib/io/record_writer.h, core/util/event.proto).

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/written_file.h"
#include "lockstep/io/image.h"

namespace lockstep {

class ProtobufMessage;

/// CRC-32C (Castagnoli), of which every record has two.
std::uint32_t crc32c(std::string_view bytes);

using HyperParameter = std::pair<std::string, std::variant<bool, double, std::string>>;

/// What TensorBoard's HPARAMS tab shows of a run.
struct HyperParameters {
  std::vector<HyperParameter> values;
  std::vector<std::string> metrics;  // tags of curves whose last values stand beside them
};

/// How a run has ended, by the numbers of the HParams plugin.
enum class SessionStatus : std::uint8_t { kUnknown = 0, kSuccess = 1, kFailure = 2, kRunning = 3 };

/// One file of a folder, which is a run in TensorBoard. Used by one thread. What it writes bears
/// the time, so it is not among what a run repeats to the byte.
class TensorBoardFile {
 public:
  /// Makes the folder where it is missing, and a file of its own in it. `step`: the first
  /// that comes; what an earlier file has from there on is TensorBoard's to forget.
  TensorBoardFile(const std::filesystem::path& folder, double wall_time, std::int64_t step);

  /// A point of the curve `tag` ("train/loss").
  void add_scalar(const std::string& tag, std::int64_t step, double wall_time, double value);
  /// A picture under the slider of `tag` ("val/street_3").
  void add_image(const std::string& tag, std::int64_t step, double wall_time, const Image& image);
  /// Makes the run one of the HPARAMS tab, from then on.
  void begin_session(const HyperParameters& parameters, double wall_time);
  void end_session(SessionStatus status, double wall_time);

 private:
  void add_value(const ProtobufMessage& value, std::int64_t step, double wall_time);
  void write(const std::string& payload);

  WrittenFile file_;
};

}  // namespace lockstep
