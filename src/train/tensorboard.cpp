#include "train/tensorboard.h"

#include <unistd.h>

#include <array>

#include "core/protobuf.h"
#include "lockstep/core/check.h"
#include "train/run_log.h"

namespace lockstep {
namespace {

// Fields of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
              kEventSession = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kSessionStatus = 1;
constexpr int kSessionStart = 1;

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
  ProtobufMessage summary;
  summary.add_message(kSummaryValue, entry);
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
