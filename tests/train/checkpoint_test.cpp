#include "run/checkpoint.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <limits>
#include <thread>

#include "lockstep/core/check.h"
#include "run/run_folder.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::read_text;
using test::TemporaryFolder;

Checkpoint make_checkpoint(std::int64_t iteration) {
  Checkpoint checkpoint;
  HostTensor tensor{"F32", {2, 3}, std::vector<std::byte>(24)};
  for (std::size_t i = 0; i < 24; ++i)
    tensor.data[i] = static_cast<std::byte>(i + static_cast<std::size_t>(iteration));
  checkpoint.weights["head.weight"] = tensor;
  TrainingState& state = checkpoint.state;
  state.iteration = iteration;
  state.optimizer.slots["momentum_buffer"] = {1.5F, -0.0F,
                                              std::numeric_limits<float>::denorm_min()};
  state.replicas = {{{"a.bn", {1, 2}, {3, 4}, 5}, {"b.bn", {6}, {7}, 8}},
                    {{"a.bn", {9, 10}, {11, 12}, 5}, {"b.bn", {13}, {14}, 8}}};
  state.losses = {0.1, 1.0 / 3};
  state.best_score = 200.0 / 3;
  state.best_iter = 4;
  state.config_hash = "0123456789abcdef";
  state.devices = "cpu:2";
  return checkpoint;
}

// Lowers the largest size a file may have, as a full disk would, for as long as it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

void flip_byte(const fs::path& path, std::size_t from_end) {
  std::string text = read_text(path);
  text[text.size() - from_end] = static_cast<char>(text[text.size() - from_end] ^ 1);
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("a checkpoint comes back as it was") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "iter_2.safetensors";
  const Checkpoint saved = make_checkpoint(2);
  save_checkpoint(path, saved);
  CHECK(fs::exists(folder.path() / "iter_2.state.safetensors"));
  const Checkpoint loaded = load_checkpoint(path);
  CHECK(loaded.weights.at("head.weight").data == saved.weights.at("head.weight").data);
  CHECK(loaded.weights.at("head.weight").shape == saved.weights.at("head.weight").shape);
  CHECK(loaded.state.iteration == 2);
  CHECK(std::memcmp(loaded.state.optimizer.slots.at("momentum_buffer").data(),
                    saved.state.optimizer.slots.at("momentum_buffer").data(), 12) == 0);
  CHECK(loaded.state.losses == saved.state.losses);
  CHECK(loaded.state.best_score == saved.state.best_score);
  CHECK(loaded.state.best_iter == 4);
  CHECK(loaded.state.config_hash == saved.state.config_hash);
  CHECK(loaded.state.devices == "cpu:2");
  REQUIRE(loaded.state.replicas.size() == 2);
  CHECK(loaded.state.replicas[1][0].layer == "a.bn");
  CHECK(loaded.state.replicas[1][0].var == std::vector<float>{11, 12});
  CHECK(loaded.state.replicas[1][1].num_batches_tracked == 8);
}

TEST_CASE("equal checkpoints are equal files") {
  const TemporaryFolder folder;
  save_checkpoint(folder.path() / "a.safetensors", make_checkpoint(2));
  save_checkpoint(folder.path() / "b.safetensors", make_checkpoint(2));
  CHECK(read_text(folder.path() / "a.safetensors") == read_text(folder.path() / "b.safetensors"));
  CHECK(read_text(folder.path() / "a.state.safetensors") ==
        read_text(folder.path() / "b.state.safetensors"));
}

TEST_CASE("a flipped bit, a cut file, a foreign file and a missing state are named") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "last.safetensors";
  const auto message = [&]() -> std::string {
    try {
      load_checkpoint(path);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  save_checkpoint(path, make_checkpoint(2));
  flip_byte(path, 1);
  CHECK(message().find("last.safetensors: damaged") != std::string::npos);
  save_checkpoint(path, make_checkpoint(2));
  flip_byte(state_path(path), 3);
  CHECK(message().find("last.state.safetensors: damaged") != std::string::npos);
  save_checkpoint(path, make_checkpoint(2));
  fs::resize_file(path, fs::file_size(path) - 5);
  CHECK(message().find("last.safetensors") != std::string::npos);
  folder.write("last.safetensors", "not a checkpoint at all");
  CHECK(message().find("last.safetensors") != std::string::npos);
  save_checkpoint(path, make_checkpoint(2));
  fs::remove(state_path(path));
  CHECK(message().find("no training state") != std::string::npos);
}

TEST_CASE("a state that claims more replicas or layers than it holds is damaged") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "last.safetensors";
  for (const auto& [key, value] : {std::pair{"replicas", "1000000000000"},
                                   {"replicas", "-1"},
                                   {"layers", "-1"},
                                   {"layers", "1000000000000"},
                                   {"replicas", "x"}}) {
    CAPTURE(key);
    save_checkpoint(path, make_checkpoint(2));
    SafetensorsFile state = read_safetensors(state_path(path));
    state.metadata[key] = value;
    state.metadata["lockstep.hash"] = content_hash(state);
    write_safetensors(state_path(path), state);
    CHECK_THROWS_WITH_AS(load_checkpoint(path), doctest::Contains("not a usable training state"),
                         DataError);
  }
}

TEST_CASE("files of two checkpoints are not taken for one") {
  const TemporaryFolder folder;
  save_checkpoint(folder.path() / "last.safetensors", make_checkpoint(2));
  save_checkpoint(folder.path() / "other.safetensors", make_checkpoint(3));
  // As after a crash between the two renames: a new state beside old weights.
  fs::rename(folder.path() / "other.state.safetensors", folder.path() / "last.state.safetensors");
  CHECK_THROWS_WITH_AS(load_checkpoint(folder.path() / "last.safetensors"),
                       doctest::Contains("does not belong to the training state"), DataError);
}

TEST_CASE("the newest whole checkpoint is found, whatever else lies there") {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  CHECK_FALSE(find_newest_checkpoint(folder.path() / "nowhere", warnings));
  for (const std::int64_t iteration : {90, 100, 110}) {
    save_checkpoint(folder.path() / ("iter_" + std::to_string(iteration) + ".safetensors"),
                    make_checkpoint(iteration));
  }
  save_checkpoint(folder.path() / "last.safetensors", make_checkpoint(110));
  folder.write("iter_x.safetensors", "?");
  folder.write("iter_120.safetensors.tmp", "half");
  CHECK(find_newest_checkpoint(folder.path(), warnings).value().checkpoint.state.iteration == 110);
  CHECK(warnings.empty());
  flip_byte(folder.path() / "iter_110.safetensors", 1);
  fs::resize_file(folder.path() / "last.safetensors", 30);
  CHECK(find_newest_checkpoint(folder.path(), warnings).value().path.filename() ==
        "iter_100.safetensors");
  CHECK(warnings.size() == 2);
  remove_unfinished_files(folder.path());
  CHECK_FALSE(fs::exists(folder.path() / "iter_120.safetensors.tmp"));
  CHECK(fs::exists(folder.path() / "iter_100.safetensors"));
}

TEST_CASE("of two checkpoints of a step the one that knows the later best is the newest") {
  const TemporaryFolder folder;
  Checkpoint checkpoint = make_checkpoint(10);
  checkpoint.state.best_iter = 4;
  save_checkpoint(folder.path() / "last.safetensors", checkpoint);
  checkpoint.state.best_iter = 10;
  save_checkpoint(folder.path() / "best.safetensors", checkpoint);
  std::vector<std::string> warnings;
  CHECK(find_newest_checkpoint(folder.path(), warnings).value().path.filename() ==
        "best.safetensors");
}

TEST_CASE("only the newest numbered checkpoints stay") {
  const TemporaryFolder folder;
  for (const std::int64_t iteration : {8, 9, 10, 100}) {
    save_checkpoint(folder.path() / ("iter_" + std::to_string(iteration) + ".safetensors"),
                    make_checkpoint(iteration));
  }
  save_checkpoint(folder.path() / "best.safetensors", make_checkpoint(8));
  prune_checkpoints(folder.path(), 2);
  const auto left = numbered_checkpoints(folder.path());
  REQUIRE(left.size() == 2);
  CHECK(left[0].filename() == "iter_100.safetensors");
  CHECK(left[1].filename() == "iter_10.safetensors");
  CHECK_FALSE(fs::exists(folder.path() / "iter_9.state.safetensors"));
  CHECK(fs::exists(folder.path() / "best.safetensors"));
}

TEST_CASE("a full disk is an error that names the file, and the last good checkpoint stays") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "last.safetensors";
  save_checkpoint(path, make_checkpoint(2));
  const std::string weights = read_text(path), state = read_text(state_path(path));
  {
    const FileSizeLimit limit(64);
    CHECK_THROWS_WITH_AS(save_checkpoint(path, make_checkpoint(3)),
                         doctest::Contains("last.state.safetensors"), Error);
  }
  CHECK(read_text(path) == weights);
  CHECK(read_text(state_path(path)) == state);
  CHECK(load_checkpoint(path).state.iteration == 2);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder.path())) ++files;
  CHECK(files == 2);
}

TEST_CASE("beside a training that saves, a reader has the last checkpoint or the one before") {
  const TemporaryFolder folder;
  const RunFolder run{folder.path()};
  fs::create_directories(run.checkpoints());
  const auto save = [&](std::int64_t step) {
    save_checkpoint(run.checkpoint("iter_" + std::to_string(step)), make_checkpoint(step));
    save_checkpoint(run.checkpoint("last"), make_checkpoint(step));
    prune_checkpoints(run.checkpoints(), 3);
  };
  save(1);
  std::atomic<std::int64_t> saved{1};
  std::atomic<bool> stop{false};
  std::thread training([&] {
    while (!stop) {
      save(saved + 1);
      ++saved;
    }
  });
  for (int readings = 0; readings < 60; ++readings) {
    const std::int64_t before = saved;
    const CheckpointFiles files = read_checkpoint_of(folder.path());
    REQUIRE(files.problem == "");
    CHECK(training_state_of(files).iteration >= before);
    CHECK_NOTHROW(load_checkpoint(run.checkpoint("last")));
  }
  stop = true;
  training.join();
}

TEST_CASE("a last checkpoint of two moments is waited for, or the newest numbered one is read") {
  const TemporaryFolder folder;
  const RunFolder run{folder.path()};
  fs::create_directories(run.checkpoints());
  for (const std::int64_t step : {7, 8}) {
    save_checkpoint(run.checkpoint("iter_" + std::to_string(step)), make_checkpoint(step));
  }
  // As between the two renames of step 8: its state beside the weights of before.
  save_checkpoint(run.checkpoint("last"), make_checkpoint(7));
  fs::copy_file(state_path(run.checkpoint("iter_8")), state_path(run.checkpoint("last")),
                fs::copy_options::overwrite_existing);
  const CheckpointFiles files = read_checkpoint_of(folder.path());
  CHECK(files.path == run.checkpoint("iter_8"));
  CHECK(training_state_of(files).iteration == 8);
  CHECK(read_checkpoint_files(run.checkpoint("last"), std::chrono::milliseconds(0)).torn);
  std::thread training([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    save_checkpoint(run.checkpoint("last"), make_checkpoint(9));
  });
  CHECK(load_checkpoint(run.checkpoint("last")).state.iteration == 9);
  training.join();
  // A damaged one is no such thing.
  flip_byte(run.checkpoint("last"), 1);
  CHECK_THROWS_WITH_AS(read_checkpoint_of(folder.path()), doctest::Contains("damaged"), DataError);
}

}  // namespace lockstep
