// Runs that go on where their data set has changed.

#include <doctest/doctest.h>

#include "data/place.h"
#include "train/runs.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::lines_of;
using test::Place;

TrainRequest request_in(const Place& place, const std::vector<std::string>& overrides = {}) {
  TrainRequest request;
  request.config = place.load(overrides);
  request.devices = "cpu:1";
  request.output = place.path("run/x").parent_path();
  request.console = Console::kQuiet;
  return request;
}

/// The warnings of a run that goes on to `steps`.
std::vector<std::string> warnings_of(const Place& place, const char* steps,
                                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> overrides{std::string("run.max_iters=") + steps};
  overrides.insert(overrides.end(), more.begin(), more.end());
  TrainRequest request = request_in(place, overrides);
  request.resume = "auto";
  const fs::path events = RunFolder{request.output}.events();
  const std::size_t before = lines_of(events).size();
  train(request);
  std::vector<std::string> warnings;
  const auto lines = lines_of(events);
  for (std::size_t i = before; i < lines.size(); ++i) {
    if (lines[i].at("type") == "warning") warnings.push_back(lines[i].at("text"));
  }
  return warnings;
}

bool tells(const std::vector<std::string>& warnings, const std::string& part) {
  return std::any_of(warnings.begin(), warnings.end(),
                     [&](const std::string& text) { return contains(text, part); });
}

}  // namespace

TEST_CASE("a run says what its data hold, and what has changed when it goes on") {
  const Place place;
  const TrainRequest request = request_in(place);
  const RunFolder folder{request.output};
  const TrainSummary summary = train(request);
  CHECK(summary.data_hash.size() == 16);
  CHECK(data_hash_of(folder.root) == summary.data_hash);
  CHECK(read_summary(folder.root)->data_hash == summary.data_hash);
  CHECK(load_checkpoint(folder.checkpoint("last")).state.data_hash == summary.data_hash);
  CHECK(lines_of(folder.events()).front().at("data").at("files") == 12);
  CHECK_FALSE(tells(warnings_of(place, "5"), "the data are not those"));
  place.mask("train/1.png", {16, 16}, {0, 1});
  place.write("val/7.png", 7);
  const auto warnings = warnings_of(place, "6");
  CHECK(tells(warnings, "1 file changed (masks/train/1.png), 2 files added (images/val/7.png"));
  CHECK_FALSE(tells(warnings_of(place, "7"), "the data are not those"));
}

TEST_CASE("the same data under another path are the same to a run that goes on") {
  const Place place;
  train(request_in(place));
  const TempFolder other;
  for (const char* kind : {"images", "masks"}) {
    fs::copy(place.path(kind), other.path() / kind, fs::copy_options::recursive);
  }
  // The configuration's other change alone is told of.
  const auto warnings = warnings_of(place, "4", {"data.root=" + other.path().string()});
  CHECK_FALSE(tells(warnings, "the data"));
  CHECK_FALSE(tells(warnings, "the configuration is not the one"));
  CHECK(tells(warnings_of(place, "5", {"optim.lr=0.02"}), "the configuration is not the one"));
}

TEST_CASE("a checkpoint that does not know its data says so once") {
  const Place place;
  const TrainRequest request = request_in(place);
  train(request);
  for (const auto& entry : fs::directory_iterator(RunFolder{request.output}.checkpoints())) {
    if (entry.path().string().ends_with(".state.safetensors")) continue;
    Checkpoint checkpoint = load_checkpoint(entry.path());
    checkpoint.state.data_hash.clear();
    save_checkpoint(entry.path(), checkpoint);
  }
  CHECK(tells(warnings_of(place, "5"), "does not say what data it was trained with"));
  CHECK_FALSE(tells(warnings_of(place, "6"), "does not say"));
}

}  // namespace lockstep
