#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/operand.h"
#include "cuda/fake_cudnn.h"
#include "kernels/cudnn/cudnn_graph.h"
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

TEST_CASE("an engine's name says which one it is") {
  for (const WeightOrder order : {WeightOrder::kOutInTaps, WeightOrder::kOutTapsIn}) {
    for (const bool fallback : {false, true}) {
      for (const std::size_t index : {0, 3, 17}) {
        const EngineChoice choice{order, fallback, index};
        CHECK(parse_engine(to_string(choice)) == choice);
      }
    }
  }
  CHECK(to_string(EngineChoice{WeightOrder::kOutTapsIn, false, 3}) == "out_taps_in heuristic 3");
  for (const char* text : {"", "3", "out_taps_in", "out_taps_in heuristic", "sideways heuristic 3",
                           "out_taps_in heuristic x", "out_taps_in heuristic 3 4",
                           "out_taps_in heuristic -1", "out_taps_in guess 3"}) {
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
  backend.convolutions().prepare_conv2d(g, in, DType::kFloat32, false, false);
  backend.synchronize();
  const int before = fake_cudnn::runs_of_the_other_engine();
  backend.convolutions().conv2d_forward(g, x.tensor(), weight.floats(), nullptr, y.tensor());
  backend.synchronize();
  return fake_cudnn::runs_of_the_other_engine() - before;
}

/// The only choice in a file.
json& only_choice(json& root) { return root["choices"].front().front()["choice"]; }

// The process remembers choices by file: another file is to a backend what another process is.
TEST_CASE("a later process takes the engines that an earlier one found the fastest") {
  const TemporaryFolder folder;
  const fs::path first = folder.path() / "first.json";
  CHECK(other_engine_runs(first) == 0);
  json root = read_json(first);
  REQUIRE(root["choices"].size() == 1);
  REQUIRE(root["choices"].front().size() == 1);
  const std::string problem = root["choices"].front().begin().key();
  CHECK(problem.find("forward pass") != std::string::npos);
  CHECK(problem.find("[2, 5, 4, 4] in fp32") != std::string::npos);
  const json fastest = only_choice(root);
  EngineChoice other = parse_engine(fastest).value();
  ++other.index;

  only_choice(root) = to_string(other);
  CHECK(other_engine_runs(folder.write("second.json", root.dump())) == 1);

  other.index = 1000;  // is not there: timed again, and replaced
  only_choice(root) = to_string(other);
  const fs::path third = folder.write("third.json", root.dump());
  CHECK(other_engine_runs(third) == 0);
  json replaced = read_json(third);
  CHECK(only_choice(replaced) == fastest);
}

}  // namespace
}  // namespace lockstep::gpu
