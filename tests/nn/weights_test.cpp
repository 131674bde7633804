// Round trips of weight files, and every kind of damage a file can have.

#include "lockstep/io/weights.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>

#include "io/atomic_file.h"
#include "lockstep/nn/models.h"
#include "nn/harness.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_in(const TemporaryFolder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A file of the given header and data; the length is right.
std::string file_of(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

HostTensor tensor_of(const std::string& dtype, std::vector<std::int64_t> shape, std::size_t bytes) {
  HostTensor tensor{dtype, std::move(shape), std::vector<std::byte>(bytes)};
  for (std::size_t i = 0; i < bytes; ++i) tensor.data[i] = static_cast<std::byte>(i * 37 + 1);
  return tensor;
}

SafetensorsFile sample_file() {
  SafetensorsFile file;
  file.metadata = {{"format", "pt"}, {"note", "\"quoted\" \xC3\xA9"}};
  file.tensors["weight"] = tensor_of("F32", {2, 3}, 24);
  file.tensors["bytes"] = tensor_of("U8", {5}, 5);
  file.tensors["count"] = tensor_of("I64", {}, 8);
  file.tensors["double"] = tensor_of("F64", {1, 2}, 16);
  file.tensors["empty"] = tensor_of("F32", {0, 4}, 0);
  return file;
}

void expect_damage(const fs::path& path, const std::string& bytes, const char* complaint) {
  CAPTURE(complaint);
  write_bytes(path, bytes);
  CHECK_THROWS_WITH_AS(read_safetensors(path), doctest::Contains(complaint), DataError);
  CHECK_THROWS_WITH_AS(read_safetensors(path), doctest::Contains(path.c_str()), DataError);
}

TestNetwork stem_and_head(std::int64_t classes) {
  return TestNetwork(
      [=](NetworkBuilder& net, Value* x) {
        x = net.batch_norm_relu(net.conv2d(x, "stem", {.out_channels = 4, .kernel = 3}), "bn");
        return net.conv2d(x, "head", {.out_channels = classes, .bias = true});
      },
      {1, 4, 4, 3});
}

}  // namespace

TEST_CASE("safetensors: what is written is read back") {
  const TemporaryFolder folder;
  const SafetensorsFile file = sample_file();
  write_safetensors(folder.path() / "a.safetensors", file);
  const SafetensorsFile read = read_safetensors(folder.path() / "a.safetensors");
  CHECK(read.metadata == file.metadata);
  REQUIRE(read.tensors.size() == file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) CHECK(read.tensors.at(name) == tensor);
  CHECK(files_in(folder) == std::vector<std::string>{"a.safetensors"});
  // The data begins at a multiple of 8, as in files of the reference implementation.
  std::uint64_t length = 0;
  std::memcpy(&length, read_text(folder.path() / "a.safetensors").data(), 8);
  CHECK(length % 8 == 0);
  write_safetensors(folder.path() / "empty.safetensors", {});
  CHECK(read_safetensors(folder.path() / "empty.safetensors").tensors.empty());
}

TEST_CASE("safetensors: a file written by hand is read") {
  const TemporaryFolder folder;
  const float values[2] = {1.5F, -2.0F};
  write_bytes(folder.path() / "hand",
              file_of(R"({"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}   )",
                      std::string(reinterpret_cast<const char*>(values), 8)));
  const SafetensorsFile file = read_safetensors(folder.path() / "hand");
  REQUIRE(file.tensors.size() == 1);
  CHECK(file.tensors.at("x").shape == std::vector<std::int64_t>{2, 1});
  CHECK(std::memcmp(file.tensors.at("x").data.data(), values, 8) == 0);
}

TEST_CASE("safetensors: damaged files are refused with the reason") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "damaged";
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"("x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}";
  };
  const auto tensor = [&](const std::string& dtype, const std::string& shape,
                          const std::string& offsets) {
    return file_of("{" + entry(dtype, shape, offsets) + "}", std::string(8, 'd'));
  };
  const std::string sound = tensor("\"F32\"", "[2]", "[0,8]");
  write_bytes(path, sound);
  CHECK_NOTHROW(read_safetensors(path));

  CHECK_THROWS_WITH_AS(read_safetensors(folder.path() / "absent"),
                       doctest::Contains("No such file"), DataError);
  CHECK_THROWS_AS(read_safetensors(path.parent_path()), DataError);
  expect_damage(path, "", "at least 8 bytes, got 0");
  expect_damage(path, "1234567", "at least 8 bytes, got 7");
  expect_damage(path, std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}",
                "at most 100000000");
  expect_damage(path, std::string("\x10\0\0\0\0\0\0\0", 8) + "{}", "only 2 follow");
  expect_damage(path, file_of("", ""), "not a JSON object");
  expect_damage(path, file_of("[1]", ""), "not a JSON object");
  expect_damage(path, file_of("{\"x\":", ""), "not valid JSON");
  expect_damage(path, file_of("{\"\xff\":1}", ""), "not valid JSON");
  expect_damage(path, file_of("{\"x\":1}", ""), "must have dtype, shape and data_offsets");
  expect_damage(path, file_of(R"({"x":{"dtype":"F32","shape":[]}})", ""), "must have dtype");
  expect_damage(path, file_of(R"({"__metadata__":{"a":1}})", ""), "must be a string");
  expect_damage(path, file_of(R"({"__metadata__":[]})", ""), "must be an object");
  expect_damage(path, tensor("\"f 32\"", "[2]", "[0,8]"), "unknown dtype \"f 32\"");
  expect_damage(path, tensor("\"\"", "[2]", "[0,8]"), "unknown dtype \"\"");
  expect_damage(path, tensor("7", "[2]", "[0,8]"), "unknown dtype 7");
  expect_damage(path, tensor("\"F32\"", "2", "[0,8]"), "shape must be a list");
  expect_damage(path, tensor("\"F32\"", "[-2]", "[0,8]"), "impossible shape [-2]");
  expect_damage(path, tensor("\"F32\"", "[2.5]", "[0,8]"), "impossible shape");
  expect_damage(path, tensor("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "impossible shape");
  expect_damage(path, tensor("\"F32\"", "[0,18446744073709551615]", "[0,0]"), "impossible shape");
  expect_damage(path, tensor("\"F32\"", "[2]", "[0,16]"), "cut off");
  expect_damage(path, tensor("\"F32\"", "[2]", "[8,0]"), "lies at bytes 8 to 0");
  expect_damage(path, tensor("\"F32\"", "[2]", "[-8,0]"), "two integers");
  expect_damage(path, tensor("\"F32\"", "[2]", "[0]"), "two integers");
  expect_damage(path, tensor("\"F32\"", "[3]", "[0,8]"), "needs 12 bytes, got 8");
  expect_damage(path, tensor("\"F32\"", "[1]", "[4,8]"), "overlap or leave gaps");
  expect_damage(path, tensor("\"F32\"", "[1]", "[0,4]"), "end at byte 4 of data that has 8");
  expect_damage(path, sound + "x", "end at byte 8 of data that has 9");
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  expect_damage(path, tensor(deep, "[2]", "[0,8]"), "unknown dtype array");
  expect_damage(path, tensor("\"F32\"", "[" + deep + "]", "[0,8]"), "impossible shape array");
  expect_damage(path, tensor("\"F32\"", "[2]", deep), "two integers, got array");
  const std::string x = entry("\"F32\"", "[2]", "[0,8]");
  expect_damage(path, file_of("{" + x + "," + x + "}", std::string(8, 'd')), "twice");
  expect_damage(path,
                file_of("{" + x + R"(,"y":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                        std::string(8, 'd')),
                "overlap");
}

TEST_CASE("safetensors: types that nothing here computes with are kept by name") {
  const TemporaryFolder folder;
  using Types = std::vector<std::pair<std::string, std::size_t>>;
  for (const auto& [type, bytes] :
       Types{{"U16", 4}, {"C64", 16}, {"F8_E4M3", 2}, {"F4", 1}, {"OF_LATER", 3}}) {
    CAPTURE(type);
    const std::string header = R"({"x":{"dtype":")" + type + R"(","shape":[2],"data_offsets":[0,)" +
                               std::to_string(bytes) + "]}}";
    write_bytes(folder.path() / "a", file_of(header, std::string(bytes, 'd')));
    const SafetensorsFile file = read_safetensors(folder.path() / "a");
    CHECK(file.tensors.at("x").dtype == type);
    CHECK(file.tensors.at("x").data.size() == bytes);
    write_safetensors(folder.path() / "b", file);
    CHECK(read_safetensors(folder.path() / "b").tensors == file.tensors);
  }
}

TEST_CASE("safetensors: a file cut off anywhere is refused") {
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "whole", sample_file());
  const std::string bytes = read_text(folder.path() / "whole");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    write_bytes(folder.path() / "cut", bytes.substr(0, length));
    CHECK_THROWS_AS(read_safetensors(folder.path() / "cut"), DataError);
  }
}

TEST_CASE("safetensors: a flipped byte is refused or changes data only, and never crashes") {
  const TemporaryFolder folder;
  write_safetensors(folder.path() / "whole", sample_file());
  const std::string bytes = read_text(folder.path() / "whole");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x10, 0x80}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      write_bytes(folder.path() / "changed", changed);
      try {
        read_safetensors(folder.path() / "changed");
      } catch (const DataError&) {
      }
    }
  }
}

TEST_CASE("files are replaced whole or not at all") {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "a", "old");
  write_file_atomically(folder.path() / "a", "new and longer");
  CHECK(read_text(folder.path() / "a") == "new and longer");
  CHECK(files_in(folder).size() == 1);
  CHECK_THROWS_WITH_AS(write_file_atomically(folder.path() / "absent/a", "x"),
                       doctest::Contains("absent/a"), Error);
  fs::create_directory(folder.path() / "folder");
  CHECK_THROWS_WITH_AS(write_file_atomically(folder.path() / "folder", "x"),
                       doctest::Contains("Is a directory"), Error);
  CHECK(files_in(folder).size() == 2);
}

TEST_CASE("a write that fails half way leaves the old file and no temporary") {
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "a", "old");
  // A limit on the size of files stands for a full disk: a short write, then an error.
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = limit;
  small.rlim_cur = 4096;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string message;
  try {
    write_file_atomically(folder.path() / "a", std::string(10000, 'x'));
  } catch (const Error& error) {
    message = error.what();
  }
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(message.find("cannot save " + (folder.path() / "a").string()) == 0);
  CHECK(message.find("too large") != std::string::npos);
  CHECK(read_text(folder.path() / "a") == "old");
  CHECK(files_in(folder) == std::vector<std::string>{"a"});
}

TEST_CASE("a tensor whose bytes do not fit its shape is not written") {
  const TemporaryFolder folder;
  SafetensorsFile file;
  file.tensors["x"] = tensor_of("F32", {3}, 8);
  CHECK_THROWS_WITH_AS(write_safetensors(folder.path() / "a", file),
                       doctest::Contains("needs 12 bytes"), Error);
  CHECK(files_in(folder).empty());
}

TEST_CASE("a tensor whose name a file cannot hold is not written") {
  const TemporaryFolder folder;
  for (const char* name : {"__metadata__", "a\xff"}) {
    SafetensorsFile file;
    file.tensors[name] = tensor_of("F32", {2}, 8);
    CHECK_THROWS_WITH_AS(write_safetensors(folder.path() / "a", file),
                         doctest::Contains("a safetensors file cannot hold"), Error);
    CHECK(files_in(folder).empty());
  }
}

TEST_CASE("weights: export and import are a round trip of every tensor") {
  const TemporaryFolder folder;
  TestNetwork from = stem_and_head(5);
  from.store.batch_norms()[0]->num_batches_tracked = 41;
  write_safetensors(folder.path() / "w", {state_dict(from.store, *from.backend), {}});

  TestNetwork to = stem_and_head(5);
  to.randomize(99);
  const ImportSummary summary =
      load_state_dict(read_safetensors(folder.path() / "w").tensors, to.store, *to.backend, true);
  CHECK(summary.loaded == 8);
  CHECK(to.reference().parameters == from.reference().parameters);
  CHECK(to.store.batch_norms()[0]->num_batches_tracked == 41);
}

TEST_CASE("weights: what does not fit is reported, or refused before anything changes") {
  TestNetwork from = stem_and_head(5);
  TestNetwork to = stem_and_head(4);
  to.randomize(50);
  TensorMap tensors;
  for (auto& [name, tensor] : state_dict(from.store, *from.backend)) {
    tensors["module." + name] = std::move(tensor);
  }
  tensors.erase("module.bn.num_batches_tracked");
  tensors.erase("module.bn.bias");
  tensors["module.bn.weight"].dtype = "I32";
  tensors["extra"] = tensor_of("F32", {1}, 4);

  const auto before = to.reference().parameters;
  CHECK_THROWS_WITH_AS(
      load_state_dict(tensors, to.store, *to.backend, true),
      doctest::Contains("head.weight: [5, 4, 1, 1] in the file, [4, 4, 1, 1] here"), DataError);
  CHECK(to.reference().parameters == before);

  const ImportSummary summary = load_state_dict(tensors, to.store, *to.backend, false);
  CHECK(summary.loaded == 3);  // stem.weight, running_mean, running_var
  CHECK(summary.skipped ==
        std::vector<std::string>{"bn.weight: I32 in the file, F32 here",
                                 "head.weight: [5, 4, 1, 1] in the file, [4, 4, 1, 1] here",
                                 "head.bias: [5] in the file, [4] here"});
  CHECK(summary.missing == std::vector<std::string>{"bn.bias"});
  CHECK(summary.unexpected == std::vector<std::string>{"extra"});
  auto expected = before;
  for (const char* name : {"stem.weight", "bn.running_mean", "bn.running_var"}) {
    expected[name] = from.reference().parameters.at(name);
  }
  CHECK(to.reference().parameters == expected);
}

TEST_CASE("weights: a second head that the network has not is told from another network") {
  TestNetwork net = stem_and_head(5);
  TensorMap tensors = state_dict(net.store, *net.backend);
  tensors["aux_classifier.0.weight"] = tensor_of("F32", {1}, 4);
  const auto refused = [&](const char* why) {
    CHECK_THROWS_WITH_AS(load_state_dict(tensors, net.store, *net.backend, true),
                         doctest::Contains(why), DataError);
  };
  refused("model.aux_head = true");
  tensors["extra"] = tensor_of("F32", {1}, 4);
  refused("unknown to the network:\n    aux_classifier.0.weight\n    extra");
}

TEST_CASE("weights: a missing counter alone is no reason to refuse") {
  TestNetwork net = stem_and_head(5);
  TensorMap tensors = state_dict(net.store, *net.backend);
  tensors.erase("bn.num_batches_tracked");
  CHECK_NOTHROW(load_state_dict(tensors, net.store, *net.backend, true));
}

}  // namespace lockstep::test
