#include "run/shared_checkpoint.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "io/atomic_file.h"
#include "lockstep/core/check.h"
#include "run/checkpoint.h"
#include "run/run_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

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

// An object of its own comes first, so that the folder goes also where what follows throws.
SharedCheckpoint::SharedCheckpoint(World& world, const fs::path& path) : SharedCheckpoint(path) {
  const RunFolder run{fs::absolute(path).parent_path().parent_path()};
  const auto weights = world.to_others([&] { return read_bytes(path); });
  const auto state = world.to_others([&] { return read_bytes(state_path(path)); });
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
