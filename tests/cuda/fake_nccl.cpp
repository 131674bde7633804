#include "cuda/fake_nccl.h"

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/fake_runtime.h"

namespace lockstep::fake_nccl {
namespace {

std::atomic<int> overlaps{0};
std::atomic<int> living{0};
std::atomic<int> rank_to_stick{-1};
std::atomic<bool> sticks{false};
std::atomic<bool> ids_refused{false};
std::atomic<int> aborts{0};
std::atomic<const char*> set_up_error{""};
std::mutex gpus_mutex;
std::map<int, int> collectives_on;  // [GPU]

/// A collective's time on its GPU.
class OnGpu {
 public:
  explicit OnGpu(int device) : device_(device) {
    const std::lock_guard lock(gpus_mutex);
    if (collectives_on[device_]++ > 0) ++overlaps;
  }
  ~OnGpu() {
    const std::lock_guard lock(gpus_mutex);
    --collectives_on[device_];
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  const int device_;
};

enum class CollectiveKind { kAllGather, kAllReduce };

struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::size_t count = 0;
  std::vector<const float*> from;  // [rank]
  std::size_t posted = 0, computed = 0;
};

/// What the ranks of a communicator share.
struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t ranks = 0, joined = 0;
  std::set<int> devices;
  bool broken = false;                    // a GPU twice, or ranks in different collectives
  std::map<int, Collective> collectives;  // by number
};

std::mutex cliques_mutex;
std::map<int, std::shared_ptr<Clique>> cliques;  // by id

/// One rank's part; what it has issued holds on to it.
struct Member {
  std::shared_ptr<Clique> clique;
  std::size_t rank = 0;
  int device = 0;
  bool aborted = false;  // under the clique's mutex

  std::vector<float> result(const Collective& all) const;
  void run(int number, CollectiveKind kind, const float* from, float* to, std::size_t count);
};

std::vector<float> Member::result(const Collective& all) const {
  std::vector<float> values;
  if (all.kind == CollectiveKind::kAllGather) {
    for (const float* from : all.from) values.insert(values.end(), from, from + all.count);
    return values;
  }
  values.assign(all.count, 0.0F);
  for (const float* from : all.from) {
    for (std::size_t i = 0; i < all.count; ++i) values[i] += from[i];
  }
  return values;
}

void Member::run(int number, CollectiveKind kind, const float* from, float* to, std::size_t count) {
  const OnGpu gpu(device);
  std::unique_lock lock(clique->mutex);
  Collective& all = clique->collectives[number];
  all.from.resize(clique->ranks);
  if (all.posted++ == 0) {
    all.kind = kind;
    all.count = count;
  }
  clique->broken = clique->broken || all.kind != kind || all.count != count;
  all.from[rank] = from;
  const auto wait_for_all = [&](const std::size_t& arrived) {
    clique->changed.notify_all();
    clique->changed.wait(lock, [&] { return aborted || arrived == clique->ranks; });
    return !aborted;
  };
  if (!wait_for_all(all.posted) || clique->broken) return;
  const std::vector<float> values = result(all);
  ++all.computed;
  if (wait_for_all(all.computed)) std::memcpy(to, values.data(), values.size() * sizeof(float));
}

}  // namespace

int take_overlaps() { return overlaps.exchange(0); }
int communicators() { return living; }
int take_aborts() { return aborts.exchange(0); }
void fail_set_up(const char* words) { set_up_error = words; }
void get_stuck(int rank) { rank_to_stick = rank; }
bool is_stuck() { return sticks; }
void refuse_ids(bool refuse) { ids_refused = refuse; }

}  // namespace lockstep::fake_nccl

using namespace lockstep::fake_nccl;

struct ncclComm {
  std::shared_ptr<Member> member = std::make_shared<Member>();
  int collectives = 0;

  ncclResult_t collective(CollectiveKind kind, const void* from, void* to, std::size_t count,
                          ncclDataType_t type, cudaStream_t stream) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(this, &state);
    if (state != ncclSuccess || type != ncclFloat) return ncclInvalidUsage;
    if (static_cast<int>(member->rank) == rank_to_stick) return stick(member);
    const auto work = [=, number = collectives++, own = member] {
      own->run(number, kind, static_cast<const float*>(from), static_cast<float*>(to), count);
    };
    lockstep::fake_runtime::enqueue(stream, work);
    return ncclSuccess;
  }

  // `ncclCommAbort` deletes the communicator meanwhile.
  static ncclResult_t stick(std::shared_ptr<Member> own) {
    rank_to_stick = -1;
    std::unique_lock lock(own->clique->mutex);
    sticks = true;
    own->clique->changed.wait(lock, [&] { return own->aborted; });
    sticks = false;
    return ncclInternalError;
  }
};

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return set_up_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (ids_refused) return ncclSystemError;
  const std::lock_guard lock(cliques_mutex);
  const auto number = static_cast<int>(cliques.size());
  cliques[number] = std::make_shared<Clique>();
  *id = {};
  std::memcpy(id->internal, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->magic != 0xcafebeef || config->blocking != 1 || rank < 0 || rank >= ranks) {
    return ncclInvalidArgument;
  }
  if (*set_up_error.load() != '\0') return ncclSystemError;
  int number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto made = std::make_unique<ncclComm>();
  Member& member = *made->member;
  member.rank = static_cast<std::size_t>(rank);
  cudaGetDevice(&member.device);
  {
    const std::lock_guard lock(cliques_mutex);
    member.clique = cliques.at(number);
  }
  Clique& clique = *member.clique;
  std::unique_lock lock(clique.mutex);
  clique.ranks = static_cast<std::size_t>(ranks);
  ++clique.joined;
  if (!clique.devices.insert(member.device).second) clique.broken = true;
  clique.changed.notify_all();
  clique.changed.wait(lock, [&] { return clique.joined == clique.ranks; });
  if (clique.broken) return ncclInvalidUsage;
  *communicator = made.release();
  ++living;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  Clique& clique = *communicator->member->clique;
  const std::lock_guard lock(clique.mutex);
  *state = clique.broken ? ncclInvalidUsage : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  return communicator->collective(CollectiveKind::kAllGather, from, to, count, type, stream);
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  if (operation != ncclSum) return ncclInvalidArgument;
  return communicator->collective(CollectiveKind::kAllReduce, from, to, count, type, stream);
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  delete communicator;
  --living;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  ++aborts;
  {
    Clique& clique = *communicator->member->clique;
    const std::lock_guard lock(clique.mutex);
    communicator->member->aborted = true;
    clique.changed.notify_all();
  }
  delete communicator;
  --living;
  return ncclSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
