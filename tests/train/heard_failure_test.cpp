// What a run leaves when another process of its world has gone.

#include <doctest/doctest.h>

#include <atomic>
#include <string>

#include "lockstep/core/check.h"
#include "support/thread_world.h"
#include "train/runs.h"

namespace lockstep {
namespace {

using test::read_text;
using test::Runs;

constexpr const char* kGone = "process 1 (host1) ended without a word";

/// A process that exchanges until process 0 hears, in an exchange in the middle of a run, that
/// process 1 has gone.
class EndingWorld final : public test::ThreadWorld {
 public:
  EndingWorld(const ThreadWorld& world, std::atomic<bool>& gone, std::function<void()> heard)
      : ThreadWorld(world), gone_(gone), heard_(std::move(heard)) {}

  void on_failure(std::function<std::string(const std::string&)> say) override {
    say_ = std::move(say);
  }

  std::string said;

 private:
  void carry(int channel, std::span<const int> peers,
             std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
             const std::function<bool()>& stop) override {
    constexpr int kExchanges = 100;
    if (process() == 0 && say_ && ++exchanges_ == kExchanges) {
      said = say_(kGone);
      heard_();
      gone_ = true;
    }
    try {
      ThreadWorld::carry(channel, peers, out, in, [&] { return gone_ || stop(); });
    } catch (const PeerAborted&) {
      if (gone_) throw ReplicaError(kGone);
      throw;
    }
  }
  std::atomic<bool>& gone_;
  const std::function<void()> heard_;
  std::function<std::string(const std::string&)> say_;
  int exchanges_ = 0;
};

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("why another process has gone is in the log when it is heard, and once") {
  const Runs runs;
  const auto log = [&] { return read_text(runs.folder("two").log()); };
  std::atomic<bool> gone = false;
  std::string log_when_heard, said;
  test::run_world(2, [&](const test::ThreadWorld& thread) {
    EndingWorld world(thread, gone, [&] { log_when_heard = log(); });
    TrainRequest request = runs.request("two", {"bn.mode=sync", "run.max_iters=1000"});
    request.devices = "cpu:2";
    request.world = world;
    CHECK_THROWS_AS(train(request), ReplicaError);
    if (world.process() == 0) said = world.said;
  });
  CHECK(said.starts_with(kGone));
  CHECK(said.find("heard at replica 0") != std::string::npos);
  CHECK(count(log_when_heard, "ERROR - " + said) == 1);
  CHECK(count(log(), "ERROR") == 1);
}

}  // namespace lockstep
