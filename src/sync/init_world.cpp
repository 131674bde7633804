#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/core/check.h"
#include "lockstep/sync/world.h"
#include "sync/failure_detector.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "liblockstep_mpi.so";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

// What mpirun says of Open MPI, then of MPICH, and srun of Slurm.
bool launched_with_others() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const std::string size = environment(name);
    if (!size.empty()) return size != "1";
  }
  return !environment("PMIX_RANK").empty() && environment("SLURM_NTASKS") != "1";
}

namespace {

/// `carrier` brings messages, and a failure detector says when someone is gone.
class WatchedWorld final : public World {
 public:
  explicit WatchedWorld(std::unique_ptr<World> carrier)
      : World(carrier->process(), carrier->hosts()),
        carrier_(std::move(carrier)),
        detector_(*carrier_) {}

  std::vector<int> waiting_for() const override { return carrier_->waiting_for(); }
  std::chrono::steady_clock::duration silence_of(int process) const override {
    return detector_.silence_of(process);
  }
  void announce_failure(const std::string& reason) override { detector_.announce(reason); }
  bool shows_error(const std::string& text) const override {
    const auto heard = detector_.failure();
    return !heard || (first() && text.find(*heard) == std::string::npos);
  }
  void on_failure(std::function<std::string(const std::string&)> explain) override {
    detector_.on_failure(std::move(explain));
  }
  void abort(int exit_code) override { carrier_->abort(exit_code); }

 private:
  void carry(int channel, std::span<const int> peers,
             std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
             const std::function<bool()>& stop) override {
    try {
      carrier_->exchange(channel, peers, out, in, [&] { return detector_.failed() || stop(); });
    } catch (const PeerAborted&) {
      if (const auto failure = detector_.failure()) throw ReplicaError(*failure);
      throw;
    }
  }

  const std::unique_ptr<World> carrier_;
  FailureDetector detector_;
};

void* load_library() {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  std::string errors;
  for (const fs::path& path : {fs::path(environment("LOCKSTEP_MPI_LIBRARY")), program / kLibrary,
                               program.parent_path() / "lib/lockstep" / kLibrary}) {
    if (path.empty() || !fs::exists(path)) continue;
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    errors += concat("; ", dlerror());
  }
  throw ConfigError(concat("a launcher has started several processes, but there is no usable ",
                           kLibrary, " beside the program or where LOCKSTEP_MPI_LIBRARY says",
                           errors,
                           "; build with an MPI (-DLOCKSTEP_MPI=ON), or start one process"));
}

}  // namespace

std::unique_ptr<World> init_world() {
  if (!launched_with_others()) return std::make_unique<World>();
  using Make = World* (*)();
  const auto make = reinterpret_cast<Make>(dlsym(load_library(), "lockstep_make_world"));
  LOCKSTEP_CHECK(make != nullptr, kLibrary, " has no lockstep_make_world");
  std::unique_ptr<World> carrier(make());
  if (carrier->size() == 1) return std::make_unique<World>();
  return std::make_unique<WatchedWorld>(std::move(carrier));
}

}  // namespace lockstep
