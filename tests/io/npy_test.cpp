#include "io/npy.h"

#include <doctest/doctest.h>

#include <cstring>

#include "data/fixtures.h"
#include "lockstep/core/check.h"

namespace lockstep {

TEST_CASE("npy: magic, version, a header of whole 64 bytes, and the values") {
  const TempFolder folder;
  const std::vector<float> values{0.5F, -1, 2, 3, 4, 1e-30F};
  const std::vector<std::pair<std::vector<std::int64_t>, std::string>> cases{
      {{6}, "(6,)"}, {{2, 3}, "(2,3,)"}, {{1, 3, 2}, "(1,3,2,)"}};
  for (const auto& [shape, text] : cases) {
    CAPTURE(text);
    write_npy(folder.file("a.npy"), shape, values);
    const std::vector<std::uint8_t> bytes = read_file(folder.file("a.npy"));
    REQUIRE(bytes.size() > 10);
    const std::vector<std::uint8_t> begin(bytes.begin(), bytes.begin() + 8);
    CHECK(begin == std::vector<std::uint8_t>{0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0});
    const std::size_t length = bytes[8] + 256U * bytes[9];
    CHECK((10 + length) % 64 == 0);
    REQUIRE(bytes.size() == 10 + length + values.size() * sizeof(float));
    const std::string header(bytes.begin() + 10, bytes.begin() + 10 + length);
    CHECK(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': " + text + ", }"));
    CHECK(header.back() == '\n');
    CHECK(std::memcmp(bytes.data() + 10 + length, values.data(), values.size() * sizeof(float)) ==
          0);
  }
}

TEST_CASE("npy: a wrong shape and a file that cannot be written are errors") {
  const TempFolder folder;
  const std::vector<float> values(6);
  CHECK_THROWS_AS(write_npy(folder.file("a.npy"), {2, 2}, values), Error);
  CHECK_THROWS_WITH_AS(write_npy(folder.path() / "not/there/a.npy", {6}, values),
                       doctest::Contains("cannot open"), Error);
}

}  // namespace lockstep
