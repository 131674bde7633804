// lockstep inspect from outside: files of every kind, and its exit codes.

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "app/process.h"
#include "lockstep/io/weights.h"
#include "run/checkpoint.h"
#include "support/check_contains.h"
#include "support/pth_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
namespace pth = test::pth;
using Json = nlohmann::json;
using test::check_contains;
using test::Outcome;
using test::run_lockstep;
using test::TemporaryFolder;

HostTensor floats(const std::vector<float>& values) {
  HostTensor tensor{"F32", {static_cast<std::int64_t>(values.size())}, {}};
  tensor.data.resize(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

const TensorMap kSound{{"bn.running_var", floats({1, 2})}, {"conv.weight", floats({0.25F, -3})}};

TEST_CASE("a checkpoint of a run: contents, and whether its training state belongs to it") {
  const TemporaryFolder folder;
  Checkpoint checkpoint;
  checkpoint.weights = kSound;
  checkpoint.state.iteration = 12;
  checkpoint.state.config_hash = "0123456789abcdef";
  checkpoint.state.devices = "cpu:2";
  checkpoint.state.optimizer.optimizer = "sgd";
  const fs::path last = folder.path() / "ckpt" / "last.safetensors";
  fs::create_directories(last.parent_path());
  save_checkpoint(last, checkpoint);
  const Outcome text = run_lockstep({"inspect", folder.path().string()});
  CHECK(text.exit_code == 0);
  check_contains(text.out, " 2 F32, 4 elements");
  check_contains(text.out, "lockstep.iteration = 12");
  check_contains(text.out, "1 BatchNorm layers, all is sound\n");

  const Json json = Json::parse(run_lockstep({"inspect", last.string(), "--json"}).out);
  CHECK(json.at("format") == "safetensors");
  CHECK(json.at("state_problem").is_null());
  CHECK(json.at("sound") == true);
  CHECK(json.at("tensors")[1].at("max") == 0.25);

  checkpoint.state.iteration = 13;  // the state of other weights
  checkpoint.weights["conv.weight"] = floats({1, 1});
  save_checkpoint(folder.path() / "other.safetensors", checkpoint);
  fs::copy_file(folder.path() / "other.state.safetensors", state_path(last),
                fs::copy_options::overwrite_existing);
  check_contains(run_lockstep({"inspect", last.string()}).out,
                 "does not belong to the training state");
}

TEST_CASE("a .pth file has the hash of its tensors in a safetensors file") {
  const TemporaryFolder folder;
  const std::string bytes(reinterpret_cast<const char*>(kSound.at("conv.weight").data.data()), 8);
  const std::string value = pth::dict(
      pth::text("conv.weight") + pth::tensor(pth::storage("FloatStorage", "0", 2), 0, {2}, {1}));
  const fs::path file = folder.write("a.pth", pth::archive(value, {{"0", bytes}}));
  const fs::path same = folder.path() / "b.safetensors";
  save_safetensors(same, {{"conv.weight", kSound.at("conv.weight")}});
  const Outcome equal = run_lockstep({"inspect", file.string(), same.string()});
  CHECK(equal.exit_code == 0);
  check_contains(equal.out, "1 tensors are equal to the byte, 0 are not");
  const Json first = Json::parse(run_lockstep({"inspect", file.string(), "--json"}).out);
  const Json second = Json::parse(run_lockstep({"inspect", same.string(), "--json"}).out);
  CHECK(first.at("format") == "torch.save (zip)");
  CHECK(first.at("hash") == second.at("hash"));
  CHECK(first.at("tensors") == second.at("tensors"));
}

TEST_CASE("two files: what differs, and exit code 1") {
  const TemporaryFolder folder;
  const fs::path a = folder.path() / "a.safetensors", b = folder.path() / "b.safetensors";
  save_safetensors(a, kSound);
  TensorMap other = kSound;
  other["conv.weight"] = floats({0.5F, -3});
  other["more"] = floats({1});
  save_safetensors(b, other);
  const Outcome text = run_lockstep({"inspect", a.string(), b.string()});
  CHECK(text.exit_code == 1);
  CHECK(text.err.empty());
  check_contains(text.out, "only in " + b.string() + ": more\n");
  check_contains(text.out, "|        2 |         1 |         0.25 |          0.5 |");
  check_contains(text.out, "1 tensors are equal to the byte, 1 are not, 1 are in one file only");
  const Outcome json = run_lockstep({"inspect", a.string(), b.string(), "--json"});
  CHECK(json.exit_code == 1);
  CHECK(Json::parse(json.out).at("changed")[0].at("max_absolute") == 0.25);
  CHECK(run_lockstep({"inspect", a.string(), b.string(), "--filter", "bn.*"}).exit_code == 0);
}

TEST_CASE("sick values are named") {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "sick.safetensors";
  save_safetensors(file, {{"bn.running_var", floats({1, 0})},
                          {"conv.weight", floats({std::numeric_limits<float>::infinity(), 0})}});
  const Outcome text = run_lockstep({"inspect", file.string()});
  CHECK(text.exit_code == 0);
  check_contains(text.out, "bn: 1 of 2 (1) have a running variance below");
  check_contains(
      text.out,
      "conv.weight: 0 NaN and 1 infinite of 2 elements\n1 BatchNorm layers, not all is sound");
  CHECK(Json::parse(run_lockstep({"inspect", file.string(), "--json"}).out).at("sound") == false);
}

TEST_CASE("files that are no weights end with 3, patterns that match nothing with 2") {
  const TemporaryFolder folder;
  const fs::path page = folder.write("page.pth", "<!DOCTYPE html><html>");
  const Outcome foreign = run_lockstep({"inspect", page.string()});
  CHECK(foreign.exit_code == 3);
  check_contains(foreign.err, "page.pth holds no weights: expected a safetensors file or");
  check_contains(foreign.err, "got an HTML page");
  const fs::path toml = folder.write("a.toml", "[data.augment]\nhflip = 1\n");
  check_contains(run_lockstep({"inspect", toml.string()}).err, "got a TOML text");
  const fs::path json = folder.write("a.json", "[\"a\"]");
  check_contains(run_lockstep({"inspect", json.string()}).err, "got a JSON text");
  const Outcome empty = run_lockstep({"inspect", folder.path().string()});
  CHECK(empty.exit_code == 3);
  check_contains(empty.err, "holds no checkpoint");
  CHECK(run_lockstep({"inspect", (folder.path() / "none").string()}).exit_code == 3);
  const fs::path file = folder.path() / "a.safetensors";
  save_safetensors(file, kSound);
  CHECK(run_lockstep({"inspect", file.string(), page.string()}).exit_code == 3);
  const Outcome none = run_lockstep({"inspect", file.string(), "--filter", "head.*"});
  CHECK(none.exit_code == 2);
  check_contains(none.err, "a pattern that names of " + file.string() + " match, such as bn.run");
}

}  // namespace
}  // namespace lockstep
