#include "kernels/cudnn/engine_file.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/operand.h"
#include "cuda/fake_cudnn.h"
#include "support/backends.h"
#include "train/temporary_folder.h"

namespace lockstep::gpu {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryFolder;

constexpr EngineChoice kFirst{WeightOrder::kOutTapsIn, true, 3};
constexpr EngineChoice kSecond{WeightOrder::kOutInTaps, false, 1};

json read_json(const fs::path& path) {
  std::ifstream stream(path);
  return json::parse(stream);
}

/// Another file than the user's for the life time of the object.
struct WithFile {
  explicit WithFile(const fs::path& path) { setenv("LOCKSTEP_CUDNN_ENGINES", path.c_str(), 1); }
  ~WithFile() { setenv("LOCKSTEP_CUDNN_ENGINES", "", 1); }
  WithFile(const WithFile&) = delete;
  WithFile& operator=(const WithFile&) = delete;
};

TEST_CASE("a file keeps choices, by model and problem, and the first one counts") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "new" / "folders" / "engines.json";
  const EngineFile file(path);
  CHECK_FALSE(file.find("H100", "a"));
  CHECK(file.settle("H100", "a", kFirst, {}) == kFirst);
  CHECK(file.settle("H100", "b", kSecond, {}) == kSecond);
  const EngineFile other(path);  // as in another process
  CHECK(other.find("H100", "a") == kFirst);
  CHECK(other.find("H100", "b") == kSecond);
  CHECK_FALSE(other.find("A100", "a"));
  CHECK_FALSE(other.find("H100", "c"));
  CHECK(other.settle("H100", "a", kSecond, {}) == kFirst);
  CHECK(other.settle("A100", "a", kSecond, {}) == kSecond);
  CHECK(other.find("H100", "a") == kFirst);
  CHECK(other.settle("H100", "a", kSecond, kFirst) == kSecond);  // which cannot be used
  CHECK(file.find("H100", "a") == kSecond);
  CHECK(file.find("H100", "b") == kSecond);
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    CHECK(entry.path().extension() != ".tmp");
  }
}

TEST_CASE("a damaged file is no file, and is replaced") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "engines.json";
  const EngineFile file(path);
  file.settle("H100", "a", kFirst, {});
  const json whole = read_json(path);
  const std::string text = whole.dump();
  std::vector<std::string> damaged{
      "", "[]", "3", "{", text.substr(0, text.size() / 2), std::string("\0\xff\x01", 3)};
  const auto with = [&](const std::string& pointer, const json& value) {
    json changed = whole;
    changed[json::json_pointer(pointer)] = value;
    damaged.push_back(changed.dump());
  };
  with("/version", 0);
  with("/version", "1");
  with("/choices", json::array({1}));
  with("/choices/H100", 7);
  with("/choices/H100/a", nullptr);
  with("/choices/H100/a/engine", "x");
  with("/choices/H100/a/fallback", 1);
  with("/choices/H100/a/weights", "sideways");
  for (const std::string& content : damaged) {
    CAPTURE(content);
    std::ofstream(path) << content;
    CHECK_FALSE(file.find("H100", "a"));
    CHECK(file.settle("H100", "a", kSecond, {}) == kSecond);
    CHECK(file.find("H100", "a") == kSecond);
  }
}

TEST_CASE("where no file can be, choices are the caller's own") {
  const TemporaryFolder folder;
  folder.write("file", "");
  fs::create_directory(folder.path() / "engines.json");
  for (const fs::path& path : {fs::path(), folder.path() / "file" / "engines.json",
                               folder.path() / "engines.json", fs::path("/proc/engines.json")}) {
    CAPTURE(path.string());
    const EngineFile file(path);
    CHECK(file.settle("H100", "a", kFirst, {}) == kFirst);
    CHECK_FALSE(file.find("H100", "a"));
    CHECK(file.settle("H100", "a", kSecond, {}) == kSecond);
  }
}

TEST_CASE("the file's place") {
  const char* home = std::getenv("HOME");
  const std::string old_home = home == nullptr ? "" : home;
  setenv("HOME", "/home/somebody", 1);
  unsetenv("LOCKSTEP_CUDNN_ENGINES");
  unsetenv("XDG_CACHE_HOME");
  CHECK(EngineFile::default_path() == "/home/somebody/.cache/lockstep/cudnn_engines.json");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(EngineFile::default_path() == "/cache/lockstep/cudnn_engines.json");
  setenv("LOCKSTEP_CUDNN_ENGINES", "/elsewhere.json", 1);
  CHECK(EngineFile::default_path() == "/elsewhere.json");
  setenv("LOCKSTEP_CUDNN_ENGINES", "", 1);
  CHECK(EngineFile::default_path().empty());
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", old_home.c_str(), 1);
}

/// A convolution by a backend of its own that uses `file`; how often the engine ran that the clock
/// does not choose.
int runs_of_the_other_engine(const fs::path& file) {
  const WithFile place(file);
  const auto backends = test::available_backends();
  Backend& backend = *backends.front().backend;
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  const Shape in{2, 5, 4, 4};
  const test::Operand x(backend, in, test::random_values(in, 1)), y(backend, g.output_shape(in));
  const test::Operand weight(backend, g.weight_shape(), test::random_values(g.weight_shape(), 2));
  backend.prepare_conv2d(g, in, DType::kFloat32, false, false);
  backend.synchronize();
  const int before = fake_cudnn::runs_of_the_other_engine();
  backend.conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend.synchronize();
  return fake_cudnn::runs_of_the_other_engine() - before;
}

/// The only choice in a file.
json& only_choice(json& root) { return root["choices"].front().front(); }

// The process remembers choices by file: another file is to a backend what another process is.
TEST_CASE("a later process takes the engines that an earlier one found the fastest") {
  const TemporaryFolder folder;
  const fs::path first = folder.path() / "first.json";
  CHECK(runs_of_the_other_engine(first) == 0);
  json root = read_json(first);
  REQUIRE(root["choices"].size() == 1);
  REQUIRE(root["choices"].front().size() == 1);
  const std::string problem = root["choices"].front().begin().key();
  CHECK(problem.find("forward pass") != std::string::npos);
  CHECK(problem.find("[2, 5, 4, 4] in fp32") != std::string::npos);
  const std::size_t fastest = only_choice(root)["engine"];

  only_choice(root)["engine"] = fastest + 1;
  CHECK(runs_of_the_other_engine(folder.write("second.json", root.dump())) == 1);

  only_choice(root)["engine"] = 1000;  // is not there: timed again, and replaced
  const fs::path third = folder.write("third.json", root.dump());
  CHECK(runs_of_the_other_engine(third) == 0);
  CHECK(read_json(third) == read_json(first));
}

}  // namespace
}  // namespace lockstep::gpu
