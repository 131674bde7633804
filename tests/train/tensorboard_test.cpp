#include "run/tensorboard.h"

#include <doctest/doctest.h>

#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/core/check.h"
#include "run/json_lines.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string bytes_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

template <typename Value>
Value value_at(const std::string& bytes, std::size_t place) {
  Value value{};
  std::memcpy(&value, bytes.data() + place, sizeof(value));
  return value;
}

TEST_CASE("the checksum is CRC-32C") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283U);  // RFC 3720's check value
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAU);
}

TEST_CASE("an event file is records with the checksums of length and payload") {
  const test::TemporaryFolder folder;
  const fs::path logs = folder.path() / "tensorboard";
  {
    TensorBoardFile file(logs, 1.5, 7);
    file.add_scalar("train/loss", 9, 2.5, 0.25);
  }
  const fs::path path = fs::directory_iterator(logs)->path();
  CHECK(path.filename().string().starts_with("events.out.tfevents.1."));
  const std::string bytes = bytes_of(path);
  std::vector<std::string> payloads;
  const auto unmasked = [](std::uint32_t crc) {
    crc -= 0xA282EAD8U;
    return (crc >> 17) | (crc << 15);
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = value_at<std::uint64_t>(bytes, at);
    CHECK(unmasked(value_at<std::uint32_t>(bytes, at + 8)) == crc32c(bytes.substr(at, 8)));
    payloads.push_back(bytes.substr(at + 12, length));
    CHECK(unmasked(value_at<std::uint32_t>(bytes, at + 12 + length)) == crc32c(payloads.back()));
    at += 16 + length;
  }
  REQUIRE(payloads.size() == 3);
  CHECK(payloads[0].find("brain.Event:2") != std::string::npos);
  // wall_time = 1: double 2.5; step = 2: 9; summary = 5 { value = 1 { tag = 1, simple_value = 2 }
  // }.
  const std::string expected = std::string("\x09\0\0\0\0\0\0\x04\x40", 9) + "\x10\x09" +
                               "\x2a\x13\x0a\x11\x0a\x0atrain/loss\x15" +
                               std::string("\0\0\x80\x3e", 4);
  CHECK(payloads[2] == expected);
}

TEST_CASE("a line of scalars.json is numbers with tags, undefined ones left out") {
  const auto line = nlohmann::ordered_json::parse(
      R"({"mode":"val","step":40,"iter":40,"mIoU":25.5,"IoU.sky":null,"note":"x"})");
  const std::vector<Scalar> scalars = scalars_of(line);
  REQUIRE(scalars.size() == 1);
  CHECK(scalars[0].tag == "val/mIoU");
  CHECK(scalars[0].step == 40);
  CHECK(scalars[0].value == 25.5);
  const test::TemporaryFolder folder;
  const fs::path file =
      folder.write("scalars.json", "{\"mode\":\"train\",\"step\":1,\"loss\":2}\n{\"mode\":\"tra");
  CHECK(read_scalars(file).size() == 1);
  CHECK_THROWS_AS(read_scalars(folder.path() / "none"), DataError);
  folder.write("scalars.json", "{\"step\":1}\n{\"mode\":7}\n");
  CHECK_THROWS_WITH_AS(read_scalars(file), doctest::Contains("scalars.json:2: damaged"), DataError);
}

TEST_CASE("lines of JSON are trimmed after a step, and where they are none of ours") {
  const test::TemporaryFolder folder;
  const fs::path file = folder.write(
      "scalars.json",
      "{\"step\":1}\n{\"step\":\"x\"}\n[]\n{\"a\":0}\n{\"step\":3}\n{\"step\":2}\n{\"step\":1}");
  CHECK(trim_json_lines(file, 2) == 4);
  CHECK(test::read_text(file) == "{\"step\":1}\n{\"a\":0}\n{\"step\":2}\n");
  CHECK(trim_json_lines(file, 2) == 0);
}

TEST_CASE("a line that was cut off goes, however long it is, and no other") {
  const test::TemporaryFolder folder;
  const std::string line = "{\"step\":1}\n", cut(200'000, 'x');
  for (const std::string& whole : {std::string(), line, line + cut + "\n"}) {
    for (const std::string& rest : {std::string(), std::string("{"), cut}) {
      const auto file = folder.write("events.jsonl", whole + rest);
      trim_cut_line(file);
      CHECK((test::read_text(file) == whole));
    }
  }
  trim_cut_line(folder.path() / "nowhere");
}

}  // namespace
}  // namespace lockstep
