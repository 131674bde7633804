#include "run/tensorboard.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>

#include "config/config.h"
#include "io/image_io.h"
#include "io/protobuf.h"
#include "lockstep/core/check.h"
#include "run/json_lines.h"
#include "run/run_sink.h"

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

/// A value in TOML as the plugin's type: strings without their quotes.
HyperParameter to_hyper_parameter(const std::string& key, const std::string& toml) {
  if (toml == "true" || toml == "false") return {key, toml == "true"};
  double number = 0;
  const char* const end = toml.data() + toml.size();
  const auto [read, error] = std::from_chars(toml.data(), end, number);
  if (error == std::errc() && read == end) return {key, number};
  const bool quoted = toml.size() >= 2 && toml.front() == '"' && toml.back() == '"';
  return {key, quoted ? toml.substr(1, toml.size() - 2) : toml};
}

std::string file_name(double wall_time) {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '-';
  return concat("events.out.tfevents.", static_cast<std::int64_t>(wall_time), ".", host.data(), ".",
                getpid(), ".0");
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = make_crc_table();
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<std::uint8_t>(c)) & 0xFF];
  return ~crc;
}

HyperParameters hyper_parameters(const Config& config, const std::string& devices) {
  HyperParameters parameters;
  for (const ConfigValue& value : config_values(config)) {
    if (value.counts) parameters.values.push_back(to_hyper_parameter(value.key, value.value));
  }
  parameters.values.emplace_back("devices", devices);
  const bool segments = config.architecture().task == Task::kSegmentation;
  parameters.metrics = {segments ? "val/mIoU" : "val/top1", "val/loss", "train/loss"};
  return parameters;
}

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, double wall_time,
                                 std::int64_t step)
    : path_(folder / file_name(wall_time)) {
  std::filesystem::create_directories(folder);
  stream_.open(path_, std::ios::binary | std::ios::app);
  if (!stream_) throw Error(concat("cannot write ", path_.string()));
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
  stream_ << length << little_endian(masked(crc32c(length))) << payload
          << little_endian(masked(crc32c(payload)));
  stream_.flush();
  if (!stream_) throw Error(concat("cannot write ", path_.string(), ": is the disk full?"));
}

namespace {

/// Seconds since 1970.
double wall_time() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

class TensorBoardSink : public RunSink {
 public:
  explicit TensorBoardSink(const RunDescription& run)
      : file_(run.folder.tensorboard(), wall_time(), run.step + 1) {}

  void begin(const RunDescription& run) override {
    file_.begin_session(hyper_parameters(run.config, run.devices), wall_time());
  }
  void scalars(const Json& line) override {
    for (const Scalar& scalar : scalars_of(line))
      file_.add_scalar(scalar.tag, scalar.step, wall_time(), scalar.value);
  }
  void evaluation(const EvaluationRecord& record) override {
    for (const NamedImage& image : record.images) {
      file_.add_image("val/" + image.name, record.step, wall_time(), image.image);
    }
  }
  void end(const RunEnd& end) override {
    file_.end_session(end.status == "done"     ? SessionStatus::kSuccess
                      : end.status == "failed" ? SessionStatus::kFailure
                                               : SessionStatus::kUnknown,
                      wall_time());
  }

 private:
  TensorBoardFile file_;
};

}  // namespace

std::unique_ptr<RunSink> tensorboard_sink(const RunDescription& run, const WarnOf& /*warn*/) {
  if (!run.config.run.tensorboard || !run.first_process) return nullptr;
  return std::make_unique<TensorBoardSink>(run);
}

std::vector<Scalar> scalars_of(const Json& line) {
  std::vector<Scalar> scalars;
  const std::string mode = line.value("mode", "train");
  const std::int64_t step = line.value("step", std::int64_t{0});
  for (const auto& [name, value] : line.items()) {
    if (name == "step" || name == "iter" || !value.is_number()) continue;
    scalars.push_back({mode + "/" + name, step, value.get<double>()});
  }
  return scalars;
}

std::vector<Scalar> read_scalars(const std::filesystem::path& scalars) {
  if (!std::ifstream(scalars)) throw DataError(concat(scalars.string(), ": cannot be read"));
  std::vector<Scalar> all;
  for_each_json_line(scalars, [&](const Json& line) {
    const std::vector<Scalar> of_line = scalars_of(line);
    all.insert(all.end(), of_line.begin(), of_line.end());
  });
  return all;
}

}  // namespace lockstep
