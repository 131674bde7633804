#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "lockstep/core/check.h"
#include "lockstep/sync/fleet.h"
#include "sync/forwarding_fleet.h"
#include "sync/lifeline.h"

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

/// MPI says the rest, and a lifeline when someone is gone.
class LifelineFleet final : public ForwardingFleet {
 public:
  explicit LifelineFleet(std::unique_ptr<Fleet> fleet)
      : ForwardingFleet(*fleet), fleet_(std::move(fleet)), lifeline_(*fleet_) {}

  void exchange(int channel, std::span<const int> peers,
                std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                const std::function<bool()>& stop) override {
    try {
      fleet_->exchange(channel, peers, out, in, [&] { return lifeline_.failed() || stop(); });
    } catch (const PeerAborted&) {
      if (const auto failure = lifeline_.failure()) throw ReplicaError(*failure);
      throw;
    }
  }
  std::chrono::steady_clock::duration silence_of(int process) const override {
    return lifeline_.silence_of(process);
  }
  void say_last_words(const std::string& text) override { lifeline_.say_last_words(text); }
  bool shows_error(const std::string& text) const override {
    const auto heard = lifeline_.failure();
    return !heard || (process() == 0 && text.find(*heard) == std::string::npos);
  }
  void on_failure(std::function<std::string(const std::string&)> say) override {
    lifeline_.on_failure(std::move(say));
  }

 private:
  const std::unique_ptr<Fleet> fleet_;
  Lifeline lifeline_;
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

std::unique_ptr<Fleet> join_fleet() {
  if (!launched_with_others()) return nullptr;
  using Make = Fleet* (*)();
  const auto make = reinterpret_cast<Make>(dlsym(load_library(), "lockstep_make_fleet"));
  LOCKSTEP_CHECK(make != nullptr, kLibrary, " has no lockstep_make_fleet");
  std::unique_ptr<Fleet> fleet(make());
  if (fleet->processes() == 1) return nullptr;
  return std::make_unique<LifelineFleet>(std::move(fleet));
}

}  // namespace lockstep
