#include "io/event_file.h"

#include <unistd.h>

#include <array>

#include "io/image_io.h"
#include "io/protobuf.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Fields of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSession = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kValueImage = 4, kValueTensor = 8,
              kValueMetadata = 9, kSessionStatus = 1;
constexpr int kSessionStart = 1;
constexpr int kImageHeight = 1, kImageWidth = 2, kImageColorspace = 3, kImageEncoded = 4;
constexpr int kRgb = 3;
constexpr int kMetadataPlugin = 1, kPluginName = 1, kPluginContent = 2;
constexpr int kTensorType = 1, kTensorShape = 2, kShapeDim = 2, kFloat = 1;
// Of tensorboard/plugins/hparams/plugin_data.proto and api.proto, and google.protobuf.Value.
constexpr int kDataVersion = 1, kDataExperiment = 2, kDataStart = 3, kDataEnd = 4;
constexpr int kExperimentHparam = 4, kExperimentMetric = 5, kHparamName = 1, kHparamType = 4;
constexpr int kMetricName = 1, kMetricTag = 2;
constexpr int kStartHparams = 1, kStartSeconds = 5, kEndStatus = 1, kEndSeconds = 2;
constexpr int kMapKey = 1, kMapValue = 2;
constexpr int kNumberValue = 2, kStringValue = 3, kBoolValue = 4;
constexpr int kTypeString = 1, kTypeBool = 2, kTypeNumber = 3;

std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
    table[byte] = crc;
  }
  return table;
}

// What the format stores in place of the checksum itself.
std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; }

template <typename Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i)
    bytes += static_cast<char>((value >> (8 * i)) & 0xFF);
  return bytes;
}

ProtobufMessage event(double wall_time, std::int64_t step) {
  ProtobufMessage message;
  message.add_double(kEventWallTime, wall_time);
  message.add_int(kEventStep, step);
  return message;
}

/// The plugin reads the metadata alone, but TensorBoard wants a value: a tensor of no elements.
ProtobufMessage no_elements() {
  ProtobufMessage shape, tensor;
  shape.add_message(kShapeDim, {});
  tensor.add_int(kTensorType, kFloat);
  tensor.add_message(kTensorShape, shape);
  return tensor;
}

/// `field`: what of the plugin's data `message` is.
ProtobufMessage hparams_value(const char* tag, int field, const ProtobufMessage& message) {
  ProtobufMessage data, plugin, metadata, value;
  data.add_int(kDataVersion, 0);
  data.add_message(field, message);
  plugin.add_bytes(kPluginName, "hparams");
  plugin.add_bytes(kPluginContent, data.bytes());
  metadata.add_message(kMetadataPlugin, plugin);
  value.add_bytes(kValueTag, tag);
  value.add_message(kValueTensor, no_elements());
  value.add_message(kValueMetadata, metadata);
  return value;
}

int type_of(const HyperParameter& parameter) {
  constexpr int kTypes[] = {kTypeBool, kTypeNumber, kTypeString};
  return kTypes[parameter.second.index()];
}

ProtobufMessage experiment_of(const HyperParameters& parameters) {
  ProtobufMessage experiment;
  for (const HyperParameter& parameter : parameters.values) {
    ProtobufMessage info;
    info.add_bytes(kHparamName, parameter.first);
    info.add_int(kHparamType, type_of(parameter));
    experiment.add_message(kExperimentHparam, info);
  }
  for (const std::string& tag : parameters.metrics) {
    ProtobufMessage name, info;
    name.add_bytes(kMetricTag, tag);
    info.add_message(kMetricName, name);
    experiment.add_message(kExperimentMetric, info);
  }
  return experiment;
}

ProtobufMessage entry_of(const HyperParameter& parameter) {
  ProtobufMessage value, entry;
  if (const bool* flag = std::get_if<bool>(&parameter.second))
    value.add_int(kBoolValue, *flag ? 1 : 0);
  if (const double* number = std::get_if<double>(&parameter.second))
    value.add_double(kNumberValue, *number);
  if (const std::string* text = std::get_if<std::string>(&parameter.second))
    value.add_bytes(kStringValue, *text);
  entry.add_bytes(kMapKey, parameter.first);
  entry.add_message(kMapValue, value);
  return entry;
}

std::string file_name(double wall_time) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  return concat("events.out.tfevents.", static_cast<std::int64_t>(wall_time), ".", host.data(), ".",
                getpid(), ".0");
}

std::filesystem::path made(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = make_crc_table();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint8_t>(c)) & 0xFF];
  return ~crc;
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, double wall_time,
                                 std::int64_t step)
    : file_(made(folder) / file_name(wall_time), WrittenFile::Mode::kAppend) {
  ProtobufMessage version;
  version.add_double(kEventWallTime, wall_time);
  version.add_bytes(kEventFileVersion, "brain.Event:2");
  write(version.bytes());
  ProtobufMessage session;
  session.add_int(kSessionStatus, kSessionStart);
  ProtobufMessage start = event(wall_time, step);
  start.add_message(kEventSession, session);
  write(start.bytes());
}

void TensorBoardFile::add_scalar(const std::string& tag, std::int64_t step, double wall_time,
                                 double value) {
  ProtobufMessage entry;
  entry.add_bytes(kValueTag, tag);
  entry.add_float(kValueSimple, static_cast<float>(value));
  add_value(entry, step, wall_time);
}

void TensorBoardFile::add_image(const std::string& tag, std::int64_t step, double wall_time,
                                const Image& image) {
  const std::vector<std::uint8_t> png = encode_png(image);
  ProtobufMessage picture, entry;
  picture.add_int(kImageHeight, image.height);
  picture.add_int(kImageWidth, image.width);
  picture.add_int(kImageColorspace, kRgb);
  picture.add_bytes(kImageEncoded, {reinterpret_cast<const char*>(png.data()), png.size()});
  entry.add_bytes(kValueTag, tag);
  entry.add_message(kValueImage, picture);
  add_value(entry, step, wall_time);
}

void TensorBoardFile::begin_session(const HyperParameters& parameters, double wall_time) {
  ProtobufMessage start;
  for (const HyperParameter& parameter : parameters.values)
    start.add_message(kStartHparams, entry_of(parameter));
  start.add_double(kStartSeconds, wall_time);
  add_value(hparams_value("_hparams_/experiment", kDataExperiment, experiment_of(parameters)), 0,
            wall_time);
  add_value(hparams_value("_hparams_/session_start_info", kDataStart, start), 0, wall_time);
}

void TensorBoardFile::end_session(SessionStatus status, double wall_time) {
  ProtobufMessage end;
  end.add_int(kEndStatus, static_cast<std::int64_t>(status));
  end.add_double(kEndSeconds, wall_time);
  add_value(hparams_value("_hparams_/session_end_info", kDataEnd, end), 0, wall_time);
}

void TensorBoardFile::add_value(const ProtobufMessage& value, std::int64_t step, double wall_time) {
  ProtobufMessage summary;
  summary.add_message(kSummaryValue, value);
  ProtobufMessage message = event(wall_time, step);
  message.add_message(kEventSummary, summary);
  write(message.bytes());
}

void TensorBoardFile::write(const std::string& payload) {
  const std::string length = little_endian(std::uint64_t{payload.size()});
  file_.write(length + little_endian(masked(crc32c(length))) + payload +
              little_endian(masked(crc32c(payload))));
}

}  // namespace lockstep
