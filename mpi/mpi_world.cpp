// A world on MPI. Nothing here blocks: whoever waits looks again and again, so that a failure ends
// the wait, and so that it can be said whose message is missing.

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/sync/world.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// A message within a machine or a fast network comes while one looks; behind that a core that
// others may need is worth more than the microseconds that waking up costs.
constexpr std::chrono::microseconds kLook{100};
constexpr std::chrono::microseconds kSleep{50};

constexpr std::chrono::seconds kAbort{2};

void init_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error("this MPI serves one thread only; expected at least MPI_THREAD_SERIALIZED");
  }
}

int process_number() {
  int process = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  return process;
}

std::vector<std::string> gather_hosts() {
  int processes = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  std::vector<char> names(static_cast<std::size_t>(processes) * MPI_MAX_PROCESSOR_NAME);
  char own[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(own, &length);
  MPI_Allgather(own, MPI_MAX_PROCESSOR_NAME, MPI_CHAR, names.data(), MPI_MAX_PROCESSOR_NAME,
                MPI_CHAR, MPI_COMM_WORLD);
  std::vector<std::string> hosts;
  for (int i = 0; i < processes; ++i) {
    hosts.emplace_back(names.data() + static_cast<std::ptrdiff_t>(i) * MPI_MAX_PROCESSOR_NAME);
  }
  return hosts;
}

class MpiWorld final : public World {
 public:
  MpiWorld() : World(process_number(), gather_hosts()) {}
  ~MpiWorld() override { MPI_Finalize(); }

  std::vector<int> waiting_for() const override {
    const std::lock_guard lock(missing_mutex_);
    std::vector<int> processes = missing_;
    std::sort(processes.begin(), processes.end());
    processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
    return processes;
  }
  void abort(int exit_code) override {
    // With a cable cut it may not return.
    std::thread([exit_code] {
      std::this_thread::sleep_for(kAbort);
      std::_Exit(exit_code);
    }).detach();
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
  }

 private:
  /// A message on its way from a process.
  struct Arrival {
    int from = 0;
    bool announced = false, done = false;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  /// What is on its way in a channel. Its memory is used by exchange after exchange.
  struct Call {
    std::vector<MPI_Request> sends;  // [peer]
    std::vector<Arrival> arrivals;   // [peer]
  };

  void carry(int channel, std::span<const int> peers,
             std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
             const std::function<bool()>& stop) override;
  Call& begin(int channel, std::span<const int> peers,
              std::span<const std::span<const std::byte>> out);
  bool look(int channel, Arrival& arrival, Bytes& in);

  std::mutex mutex_;  // around every call of MPI after the first ones
  // Not that one: a call of MPI may not return once a process is gone, and that is when it is
  // asked.
  mutable std::mutex missing_mutex_;
  std::vector<int> missing_;   // processes that calls under way have not heard of
  std::map<int, Call> calls_;  // [channel]
};

MpiWorld::Call& MpiWorld::begin(int channel, std::span<const int> peers,
                                std::span<const std::span<const std::byte>> out) {
  const std::lock_guard lock(mutex_);
  Call& call = calls_[channel];
  call.sends.assign(peers.size(), MPI_REQUEST_NULL);
  call.arrivals.assign(peers.size(), {});
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const auto& message = out[static_cast<std::size_t>(peers[i])];
    if (message.size() > INT_MAX) {
      throw Error("a message of more than 2^31 - 1 bytes is too long for MPI: " +
                  std::to_string(message.size()) + " to process " + std::to_string(peers[i]));
    }
    MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_BYTE, peers[i], channel,
              MPI_COMM_WORLD, &call.sends[i]);
    call.arrivals[i].from = peers[i];
    const std::lock_guard missing_lock(missing_mutex_);
    missing_.push_back(peers[i]);
  }
  return call;
}

/// Whether something has come or been done since the last look.
bool MpiWorld::look(int channel, Arrival& arrival, Bytes& in) {
  const std::lock_guard lock(mutex_);
  if (!arrival.announced) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Improbe(arrival.from, channel, MPI_COMM_WORLD, &found, &message, &status);
    if (found == 0) return false;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    in.resize(static_cast<std::size_t>(bytes));
    MPI_Imrecv(in.data(), bytes, MPI_BYTE, &message, &arrival.request);
    arrival.announced = true;
    const std::lock_guard missing_lock(missing_mutex_);
    missing_.erase(std::find(missing_.begin(), missing_.end(), arrival.from));
  }
  int done = 0;
  MPI_Test(&arrival.request, &done, MPI_STATUS_IGNORE);
  arrival.done = done != 0;
  return true;
}

void MpiWorld::carry(int channel, std::span<const int> peers,
                     std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                     const std::function<bool()>& stop) {
  Call& call = begin(channel, peers, out);
  Clock::time_point looked = Clock::now();
  while (true) {
    bool moved = false, all = true;
    for (Arrival& arrival : call.arrivals) {
      if (!arrival.done)
        moved |= look(channel, arrival, in[static_cast<std::size_t>(arrival.from)]);
      all = all && arrival.done;
    }
    if (all) {
      const std::lock_guard lock(mutex_);
      int sent = 0;
      MPI_Testall(static_cast<int>(call.sends.size()), call.sends.data(), &sent,
                  MPI_STATUSES_IGNORE);
      if (sent != 0) return;
    }
    if (stop()) throw PeerAborted("this process leaves the exchange with the others");
    if (moved) {
      looked = Clock::now();
    } else if (Clock::now() - looked > kLook) {
      std::this_thread::sleep_for(kSleep);
    }
  }
}

}  // namespace
}  // namespace lockstep

extern "C" lockstep::World* lockstep_make_world() {
  lockstep::init_mpi();
  return new lockstep::MpiWorld;
}
