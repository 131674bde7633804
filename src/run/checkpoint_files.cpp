#include "run/checkpoint_files.h"

#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "io/atomic_file.h"
#include "io/weight_files.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"
#include "run/trained_model.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{10};

/// Which files there are: one that is replaced is another.
using Identity = std::array<std::array<std::int64_t, 3>, 2>;

Identity identity_of(const fs::path& weights) {
  Identity identity{};
  const std::array files{weights, state_path(weights)};
  for (std::size_t i = 0; i < files.size(); ++i) {
    struct stat found {};
    if (stat(files[i].c_str(), &found) != 0) continue;
    identity[i] = {static_cast<std::int64_t>(found.st_ino), found.st_mtim.tv_sec,
                   found.st_mtim.tv_nsec};
  }
  return identity;
}

bool someone_writes(const fs::path& folder) {
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(folder, missing)) {
    if (entry.path().extension() == ".tmp") return true;
  }
  return false;
}

/// Waits until the files are others than `before`.
bool change_comes(const fs::path& path, const Identity& before, milliseconds patience) {
  const auto start = Clock::now();
  while (identity_of(path) == before) {
    const int factor = someone_writes(fs::absolute(path).parent_path()) ? 10 : 1;
    if (Clock::now() - start >= factor * patience) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

CheckpointFiles read_once(const fs::path& path) {
  CheckpointFiles files{path, read_weights(path), {}};
  const fs::path beside = state_path(path);
  if (!fs::exists(beside)) return files;
  try {
    SafetensorsFile state = read_weights(beside);
    files.torn = !is_pair(files.weights.metadata, state.metadata);
    if (files.torn) {
      files.problem = concat(path.string(), ": does not belong to the training state beside it");
    } else {
      files.state = std::move(state);
    }
  } catch (const DataError& error) {
    files.problem = error.what();
  }
  return files;
}

/// Nothing of a file that is not there.
std::string read_bytes(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

fs::path make_temporary_folder() {
  std::string folder = (fs::temp_directory_path() / "lockstep-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) throw Error(concat("cannot make a folder ", folder));
  return folder;
}

}  // namespace

// A file that is replaced while it is read may end in the middle on a file system of another host.
CheckpointFiles read_checkpoint_files(const fs::path& path, milliseconds patience) {
  constexpr int kMostTries = 50;  // a training that saves every step meets each at random
  for (int tries = 1;; ++tries) {
    const Identity before = identity_of(path);
    try {
      CheckpointFiles files = read_once(path);
      const bool good = files.problem.empty() || tries == kMostTries;
      const milliseconds wait = files.torn ? patience : milliseconds(0);
      if (good || !change_comes(path, before, wait)) return files;
    } catch (const DataError&) {
      if (tries == kMostTries || identity_of(path) == before) throw;
    }
  }
}

CheckpointFiles read_checkpoint_of(const fs::path& target) {
  const fs::path path = checkpoint_of(target);
  if (path == target) return read_checkpoint_files(path);
  CheckpointFiles last = read_checkpoint_files(path, 10 * kPause);
  if (!last.torn) return last;
  for (const fs::path& numbered : numbered_checkpoints(RunFolder{target}.checkpoints())) {
    try {
      CheckpointFiles files = read_checkpoint_files(numbered);
      if (files.state) return files;
    } catch (const DataError&) {
      continue;  // it went meanwhile, or is damaged
    }
  }
  return last;
}

// An object of its own comes first, so that the folder goes also where what follows throws.
SharedCheckpoint::SharedCheckpoint(World& world, const fs::path& path,
                                   const std::function<CheckpointFiles()>& read)
    : SharedCheckpoint(path) {
  const RunFolder run{fs::absolute(path).parent_path().parent_path()};
  CheckpointFiles files;
  const auto weights = world.to_others([&] {
    files = read();
    return safetensors_bytes(files.weights);
  });
  const auto state =
      world.to_others([&] { return files.state ? safetensors_bytes(*files.state) : ""; });
  const auto config = world.to_others([&] { return read_bytes(run.config()); });
  if (!weights) return;
  copy_ = make_temporary_folder();
  const RunFolder folder{copy_};
  fs::create_directories(folder.checkpoints());
  path_ = folder.checkpoint("last");
  write_file_atomically(path_, *weights);
  if (!state->empty()) write_file_atomically(state_path(path_), *state);
  if (!config->empty()) write_file_atomically(folder.config(), *config);
}

SharedCheckpoint::~SharedCheckpoint() {
  std::error_code ignored;
  if (!copy_.empty()) fs::remove_all(copy_, ignored);
}

}  // namespace lockstep
