#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/operand.h"
#include "cuda/fake_cudnn.h"
#include "cuda/fake_runtime.h"
#include "kernels/cuda_backend.h"
#include "kernels/cudnn/engine_search.h"
#include "support/backends.h"
#include "support/temporary_folder.h"

namespace lockstep::gpu {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TemporaryFolder;

json read_json(const fs::path& path) {
  std::ifstream stream(path);
  return json::parse(stream);
}

/// Another file than the user's for the life time of the object.
struct WithFile {
  explicit WithFile(const fs::path& path) { setenv("LOCKSTEP_AUTOTUNE", path.c_str(), 1); }
  ~WithFile() { setenv("LOCKSTEP_AUTOTUNE", "", 1); }
  WithFile(const WithFile&) = delete;
  WithFile& operator=(const WithFile&) = delete;
};

bool is_timed(const std::string& line) { return line.find("not timed") == std::string::npos; }

TEST_CASE("an engine's name says which one it is") {
  using Knobs = std::vector<EngineChoice::Knob>;
  for (const WeightOrder order : {WeightOrder::kOutInTaps, WeightOrder::kOutTapsIn}) {
    for (const Knobs& knobs : {Knobs{}, Knobs{{2, 0}}, Knobs{{2, 0}, {17, -4096}}}) {
      const EngineChoice choice{order, 67, knobs};
      CHECK(parse_engine(to_string(choice)) == choice);
    }
  }
  CHECK(to_string(EngineChoice{WeightOrder::kOutTapsIn, 67, {{2, 0}, {5, 1}}}) ==
        "out_taps_in engine 67 knobs 2=0 5=1");
  for (const char* text :
       {"", "3", "out_taps_in", "out_taps_in engine", "sideways engine 3", "out_taps_in engine x",
        "out_taps_in engine 3 4", "out_taps_in engine 3 knobs", "out_taps_in engine 3 knobs 2",
        "out_taps_in engine 3 knobs 2=x", "out_taps_in engine 3 knobs 2=1 5",
        "out_taps_in engine 3 knots 2=1", "out_taps_in heuristic 3"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_engine(text));
  }
}

/// A convolution by a backend of its own that uses `file`; how often the engine ran that the clock
/// does not choose.
int other_engine_runs(const fs::path& file) {
  const WithFile place(file);
  const auto backends = test::available_backends();
  Backend& backend = *backends.front().backend;
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  const Shape in{2, 5, 4, 4};
  const test::Operand x(backend, in, test::random_values(in, 1)), y(backend, g.output_shape(in));
  const test::Operand weight(backend, g.weight_shape(), test::random_values(g.weight_shape(), 2));
  backend.convolutions().prepare_conv2d(g, in, DType::kFloat32, true, false);
  backend.synchronize();
  const int before = fake_cudnn::runs_of_the_other_engine();
  backend.convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend.synchronize();
  return fake_cudnn::runs_of_the_other_engine() - before;
}

/// Of the two passes in a file.
std::string forward_problem(const json& root) {
  for (const auto& entry : root["choices"].front().items()) {
    if (entry.key().find("forward pass") != std::string::npos) return entry.key();
  }
  return "";
}

json& forward_choice(json& root) {
  return root["choices"].front().at(forward_problem(root))["choice"];
}

// The process remembers choices by file: another file is to a backend what another process is.
TEST_CASE("a later process takes the engines that an earlier one found the fastest") {
  const TemporaryFolder folder;
  const fs::path first = folder.path() / "first.json";
  CHECK(other_engine_runs(first) == 0);
  json root = read_json(first);
  REQUIRE(root["choices"].size() == 1);
  REQUIRE(root["choices"].front().size() == 2);
  const std::string problem = forward_problem(root);
  CHECK(problem.find("forward pass") != std::string::npos);
  CHECK(problem.find("[2, 5, 4, 4] in fp32") != std::string::npos);
  const json fastest = forward_choice(root);
  EngineChoice other = parse_engine(fastest).value();
  REQUIRE(other.knobs.size() == 1);
  ++other.knobs[0].value;

  forward_choice(root) = to_string(other);
  CHECK(other_engine_runs(folder.write("second.json", root.dump())) == 1);

  other.number = 1000;  // is not there: timed again, and replaced
  forward_choice(root) = to_string(other);
  const fs::path third = folder.write("third.json", root.dump());
  CHECK(other_engine_runs(third) == 0);
  json replaced = read_json(third);
  CHECK(forward_choice(replaced) == fastest);
}

TEST_CASE("images of other sizes to evaluate are computed without a clock, and kept in no file") {
  const TemporaryFolder folder;
  const WithFile place(folder.path() / "choices.json");
  const auto backends = test::available_backends();
  ConvolutionOperations& convolutions = backends.front().backend->convolutions();
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  for (const std::int64_t side : {31, 32, 33}) {
    convolutions.prepare_conv2d(g, {2, side, side, 4}, DType::kFloat32, side == 32, false);
  }
  convolutions.prepare_conv2d(g, {2, 34, 34, 4}, DType::kFloat32, false, true);  // transposed
  std::vector<std::string> lines = convolutions.conv2d_algorithms();
  std::erase_if(lines, [](const std::string& line) {
    return line.find("rejected for workspace") != std::string::npos;
  });
  REQUIRE(lines.size() == 6);
  // Both passes of the trained size.
  CHECK(std::count_if(lines.begin(), lines.end(), is_timed) == 2);
  CHECK(read_json(folder.path() / "choices.json")["choices"].front().size() == 2);
}

TEST_CASE("for an image's size to evaluate cuDNN is asked once, and no memory is taken") {
  const auto backends = test::available_backends();
  Backend& backend = *backends.front().backend;
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  backend.convolutions().prepare_conv2d(g, {2, 40, 40, 4}, DType::kFloat32, false, false);
  const int asked = fake_cudnn::times_asked();
  const std::size_t peak = backend.peak_allocated_bytes();
  backend.convolutions().prepare_conv2d(g, {2, 39, 40, 4}, DType::kFloat32, false, false);
  CHECK(fake_cudnn::times_asked() == asked + 1);
  CHECK(backend.peak_allocated_bytes() == peak);
}

TEST_CASE("a problem that an evaluation met first is timed when a training meets it") {
  const TemporaryFolder folder;
  const WithFile place(folder.path() / "choices.json");
  const auto backends = test::available_backends();
  ConvolutionOperations& convolutions = backends.front().backend->convolutions();
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  for (const bool training : {false, true}) {
    convolutions.prepare_conv2d(g, {2, 37, 37, 4}, DType::kFloat32, training, false);
    for (const std::string& line : convolutions.conv2d_algorithms()) {
      if (line.find("rejected for") != std::string::npos) continue;
      CHECK(is_timed(line) == training);
    }
  }
}

TEST_CASE("plans of old sizes go, those of the training stay") {
  const TemporaryFolder folder;
  const WithFile place(folder.path() / "choices.json");
  const auto backends = test::available_backends();
  ConvolutionOperations& convolutions = backends.front().backend->convolutions();
  const ConvGeometry g{4, 6, 1, 1, 1, 1, 0, 0, 1, 1, 1};
  convolutions.prepare_conv2d(g, {1, 1, 1, 4}, DType::kFloat32, true, false);
  for (std::int64_t width = 2; width < 1100; ++width) {
    convolutions.prepare_conv2d(g, {1, 1, width, 4}, DType::kFloat32, false, false);
  }
  std::vector<std::string> lines = convolutions.conv2d_algorithms();
  std::erase_if(lines, [](const std::string& line) {
    return line.find("bytes of workspace") == std::string::npos;
  });
  CHECK(lines.size() == 2 + 512 + 1098 - 1024);
  CHECK(std::count_if(lines.begin(), lines.end(), is_timed) == 2);
}

TEST_CASE("a report names what was rejected for its workspace") {
  CHECK(most_workspace(std::size_t{8} << 30) == std::size_t{512} << 20);
  CHECK(most_workspace(std::size_t{24} << 30) == std::size_t{1536} << 20);
  const auto backends = test::available_backends();
  ConvolutionOperations& convolutions = backends.front().backend->convolutions();
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  REQUIRE_NOTHROW(convolutions.prepare_conv2d(g, {2, 29, 29, 4}, DType::kFloat32, false, false));
  const std::string line = convolutions.conv2d_algorithms().back();
  CHECK(line.find("1 of cuDNN's first engines rejected for workspace") != std::string::npos);
  CHECK(line.find("asks for 1048576 MiB") != std::string::npos);
}

// As where a network leaves nothing of a card.
TEST_CASE("without memory to try engines, cuDNN's order decides, and nothing is kept") {
  const TemporaryFolder folder;
  fake_runtime::use({.devices = 1});
  const Context context;
  cudnnHandle_t handle = nullptr;
  REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
  EngineSearch search(
      0, handle, context, [](std::size_t) -> Storage { throw Error("full"); },
      folder.path() / "choices.json");
  const ConvGeometry g{4, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  const FoundPlan found = search.find({g, {2, 27, 27, 4}, ConvPass::kForward}, true);
  CHECK(found.cudnn.plan.get() != nullptr);
  CHECK(found.milliseconds == 0);
  CHECK_FALSE(fs::exists(folder.path() / "choices.json"));
  cudnnDestroy(handle);
}

}  // namespace
}  // namespace lockstep::gpu
