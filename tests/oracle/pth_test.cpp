// Files that PyTorch has written: load_pth must find in them what PyTorch has put there.

#include "oracle/golden.h"

namespace lockstep::oracle {
namespace {

namespace fs = std::filesystem;

fs::path pth_file(const std::string& name) {
  return fs::path(std::getenv("LOCKSTEP_GOLDEN")) / "pth" / (name + ".pth");
}

/// What the file `name` holds.
TensorMap expected_tensors(const Golden& golden, const std::string& name) {
  TensorMap tensors;
  for (const auto& [path, tensor] : golden.tensors()) {
    if (path.starts_with(name + "/")) tensors[path.substr(name.size() + 1)] = tensor;
  }
  return tensors;
}

}  // namespace

TEST_CASE("files of torch.save hold for us what PyTorch has put there") {
  const auto golden = load_golden("pth");
  if (!golden) return;
  const nlohmann::json files = golden->metadata("files");
  CHECK(files.size() == 21);
  for (const std::string name : files) {
    CAPTURE(name);
    const TensorMap tensors = load_weights(pth_file(name)),
                    expected = expected_tensors(*golden, name);
    CHECK(tensors.size() == expected.size());
    for (const auto& [key, tensor] : expected) {
      CAPTURE(key);
      REQUIRE(tensors.contains(key));
      CHECK(tensors.at(key).dtype == tensor.dtype);
      CHECK(tensors.at(key).shape == tensor.shape);
      CHECK(tensors.at(key).data == tensor.data);
    }
  }
}

TEST_CASE("files of torch.save that are no weights are refused, and nothing in them is executed") {
  const auto golden = load_golden("pth");
  if (!golden) return;
  const nlohmann::json refused = golden->metadata("refused");
  CHECK(refused.size() == 21);
  for (const auto& [name, complaint] : refused.items()) {
    CAPTURE(name);
    const std::string expected = complaint;
    CHECK_THROWS_WITH_AS(load_weights(pth_file(name)), doctest::Contains(expected.c_str()),
                         DataError);
  }
  CHECK_FALSE(fs::exists("executed_by_a_pickle"));
}

}  // namespace lockstep::oracle
