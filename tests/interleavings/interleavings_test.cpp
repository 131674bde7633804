// Every interleaving of ranks that meet, with whatever may befall them at any point: what the
// barrier promises holds in each of them.

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interleavings/scheduler.h"
#include "lockstep/core/check.h"
#include "lockstep/sync/sync_group.h"
#include "support/errors.h"

namespace lockstep {
namespace {

using test::contains;
using test::Scheduler;
using test::scheduler;

constexpr int kMaxRanks = 3;
constexpr int kCalls = 2;
constexpr int kNone = -1;
constexpr int kPoison = 1'000'000;  // of a message that nobody may read any more

/// A rank before one of its calls; call kCalls: after the last one.
struct Place {
  int rank = kNone;
  int call = kNone;
  bool operator==(const Place&) const = default;
};

enum class Means {
  kUsersBarrier,  // SyncGroup::make_barrier
  kStatistics,    // Communicator::all_show and barrier
  kSpinning,      // a Barrier alone, whose ranks look for each other before they sleep
};

/// What may befall the ranks.
struct Case {
  const char* name;
  Means means = Means::kUsersBarrier;
  int ranks = kMaxRanks;
  bool abort = false;  // by a thread that has nothing to do with the ranks, at any point
  Place throws = {}, throws_too = {};
  Place strays = {};   // to a call that the others do not make
  Place stalls = {};   // until long after the watchdog's time
  bool works = false;  // between posting and waiting for the answer
  Place throws_at_work = {};
  int callback_throws = kNone;  // in this call
  bool watchdog = false;
  Scheduler::Whims whims = {.wake_ups = 1};

  bool has_fault() const {
    return abort || watchdog || throws.rank != kNone || throws_at_work.rank != kNone ||
           strays.rank != kNone || callback_throws != kNone;
  }
};

const std::exception_ptr kAbort = std::make_exception_ptr(Error("aborted from outside"));
const std::exception_ptr kThrown = std::make_exception_ptr(Error("a replica throws"));
const std::exception_ptr kThrownInCallback = std::make_exception_ptr(Error("the callback throws"));
constexpr std::array kCauses{"aborted from outside", "a replica throws", "the callback throws",
                             "stalled: no progress", "every replica must make the same"};

/// How a rank has left a call: with an answer, or for one of kCauses.
struct Outcome {
  enum Kind { kNotYet, kAnswer, kCause, kPeerAborted };
  Kind kind = kNotYet;
  std::size_t cause = 0;
};

/// What the callback answers.
struct Sum {
  int call = kNone;
  const int* value = nullptr;
};
/// A message lies with its rank until the rank has its answer.
using SumBarrier = Barrier<const int*, Sum>;

/// What one interleaving runs on.
class Meeting {
 public:
  explicit Meeting(const Case& of) : case_(of) {
    const auto callback = [this](const SyncCall& call, auto messages, auto answers) {
      add(call.index, messages, answers);
    };
    if (case_.means == Means::kSpinning) {
      // Looks as often as in one round between two looks at the clock.
      sums_ = own_.emplace_back(std::make_unique<SumBarrier>(ranks(), callback, failure_, nullptr,
                                                             std::chrono::microseconds(-1)))
                  .get();
      return;
    }
    std::vector<Device> devices;
    for (const int rank : ranks()) devices.push_back({DeviceKind::kCpu, rank, 0});
    SyncGroupOptions options;
    // The shortest that has a single interval: a watchdog that has woken once looks for the stall.
    options.stall_timeout = std::chrono::milliseconds(case_.watchdog ? 1 : 0);
    group_ = std::make_unique<SyncGroup>(devices, options);
    sums_ = &group_->make_barrier<const int*, Sum>(callback);
  }

  std::vector<int> ranks() const { return contiguous_groups(case_.ranks, 0).front(); }

  void run_rank(int rank) {
    for (int call = 0; call <= kCalls; ++call) {
      const Place here{rank, call};
      if (here == case_.throws || here == case_.throws_too) return abort(kThrown);
      if (here == case_.stalls) scheduler().sleep(std::chrono::seconds(1));
      if (call < kCalls && !meet(here)) return;
    }
    if (case_.means == Means::kStatistics) leave(rank);
  }

  /// As who runs a replica does when it throws.
  void abort(const std::exception_ptr& cause) {
    group_ ? group_->abort(cause) : static_cast<void>(failure_.raise(cause));
  }

  /// After all have ended.
  void check() const {
    const std::exception_ptr cause = group_ ? group_->failure() : failure_.cause();
    if (cause && !case_.has_fault()) scheduler().fail("there is a failure without a fault");
    if (!cause && case_.stalls.rank != kNone) scheduler().fail("a stall that nobody reports");
    for (int call = 0; call < kCalls; ++call) check_call(call, cause);
    if (case_.callback_throws != kNone && !case_.abort) check_callbacks_failure();
  }

 private:
  int message_of(Place at) const { return 100 * at.call + at.rank; }
  int sum_of(int call) const {
    return case_.ranks * 100 * call + case_.ranks * (case_.ranks - 1) / 2;
  }
  int& message(Place at) { return messages_[at.rank][at.call]; }
  Outcome& outcome(Place at) { return outcomes_[at.rank][at.call]; }
  const Outcome& outcome(Place at) const { return outcomes_[at.rank][at.call]; }

  /// The callback. Others may go on before it reads what they have posted, if they are let.
  void add(int call, std::span<const int* const> messages, std::span<Sum> answers) {
    scheduler().yield();
    sum_ = 0;
    for (const int* message : messages) sum_ += *message;
    if (sum_ != sum_of(call)) {
      scheduler().fail("the callback reads messages of two calls, or of ranks that have left");
    }
    if (++callbacks_[call] > 1) scheduler().fail("a call has two callbacks");
    if (call == case_.callback_throws) std::rethrow_exception(kThrownInCallback);
    std::fill(answers.begin(), answers.end(), Sum{call, &sum_});
  }

  /// False: the rank has no answer.
  bool meet(Place here) {
    const char* const layer = here == case_.strays ? "another layer" : "layer";
    const SyncCall call{layer, Direction::kForward, here.call, 1};
    message(here) = message_of(here);
    Outcome& own = outcome(here);
    try {
      if (here == case_.throws_at_work) {
        // Its message is read until all have ended.
        sums_->post(here.rank, call, &message(here));
        abort(kThrown);
        return false;
      }
      const int sum = case_.means == Means::kStatistics ? exchanged(here.rank, call)
                                                        : answered(here.rank, call);
      if (sum != sum_of(here.call)) scheduler().fail("a rank has the answer of another call");
      own = {Outcome::kAnswer};
    } catch (const PeerAborted&) {
      own = {Outcome::kPeerAborted, cause_of(std::current_exception())};
    } catch (...) {
      own = {Outcome::kCause, cause_of(std::current_exception())};
    }
    return own.kind == Outcome::kAnswer;
  }

  /// The sum of the ranks' messages, each of which is its rank's own again afterwards.
  int answered(int rank, const SyncCall& call) {
    int& own = message({rank, call.index});
    try {
      if (case_.works) {
        sums_->post(rank, call, &own);
        scheduler().yield();
      }
      const Sum answer = case_.works ? sums_->await(rank) : sums_->exchange(rank, call, &own);
      own = kPoison;
      scheduler().yield();  // the others are on their way to the next call
      const bool there = answer.value != nullptr && answer.call == call.index;
      return there ? *answer.value : kPoison;
    } catch (...) {
      own = kPoison;
      throw;
    }
  }

  /// The same from statistics, which are a rank's own again when its next call has returned.
  int exchanged(int rank, const SyncCall& call) {
    const auto* const own = reinterpret_cast<const float*>(&message({rank, call.index}));
    const auto slots = group_->at(rank).all_show(call, {1, own});
    if (call.index > 0) message({rank, call.index - 1}) = kPoison;
    scheduler().yield();
    int sum = 0;
    for (const StatSlot& slot : slots) sum += *reinterpret_cast<const int*>(slot.data);
    return sum;
  }

  void leave(int rank) {
    try {
      group_->at(rank).barrier("the end");
      message({rank, kCalls - 1}) = kPoison;
    } catch (const PeerAborted&) {
      static_cast<void>(cause_of(std::current_exception()));
    }
  }

  static std::size_t cause_of(const std::exception_ptr& thrown) {
    const std::string text = test::text_of(thrown);
    for (std::size_t cause = 0; cause < kCauses.size(); ++cause) {
      if (contains(text, kCauses[cause])) return cause;
    }
    scheduler().fail("an unknown error: " + text);
    return kCauses.size();
  }

  /// Everybody has left the call with its answer or for the failure's cause, unless one has failed
  /// before: then nobody has its answer.
  void check_call(int call, const std::exception_ptr& cause) const {
    bool everyone_came = true;
    for (const int rank : ranks()) {
      const bool threw = case_.throws == Place{rank, call} || case_.throws_too == Place{rank, call};
      const bool failed_before = call > 0 && outcome({rank, call - 1}).kind != Outcome::kAnswer;
      everyone_came = everyone_came && !threw && !failed_before;
    }
    for (const int rank : ranks()) {
      const Outcome& own = outcome({rank, call});
      if (own.kind == Outcome::kAnswer && !everyone_came) {
        scheduler().fail("a rank has the answer of a call that another one did not make");
      }
      if (own.kind == Outcome::kNotYet && !cause) scheduler().fail("a rank is gone without a word");
      const bool failed = own.kind == Outcome::kCause || own.kind == Outcome::kPeerAborted;
      if (failed && (!cause || own.cause != cause_of(cause))) {
        scheduler().fail("a rank leaves for another reason than that of the failure");
      }
    }
  }

  void check_callbacks_failure() const {
    for (const int rank : ranks()) {
      if (outcome({rank, case_.callback_throws}).kind != Outcome::kCause) {
        scheduler().fail("a rank does not get the callback's exception");
      }
    }
  }

  const Case& case_;
  Failure failure_;
  std::vector<std::unique_ptr<SumBarrier>> own_;
  std::unique_ptr<SyncGroup> group_;
  SumBarrier* sums_ = nullptr;
  int sum_ = 0;  // of the callback: everyone's answer
  std::array<int, kCalls> callbacks_{};
  std::array<std::array<int, kCalls>, kMaxRanks> messages_{};
  std::array<std::array<Outcome, kCalls>, kMaxRanks> outcomes_{};
};

void check(const Case& of) {
  World::alone();  // made here: the memory of a run goes with it
  const Scheduler::Result result = scheduler().explore(of.whims, [&of] {
    const auto meeting = std::make_unique<Meeting>(of);
    std::vector<threading::Thread> threads;
    for (const int rank : meeting->ranks()) {
      threads.emplace_back([&, rank] { meeting->run_rank(rank); });
    }
    if (of.abort) threads.emplace_back([&] { meeting->abort(kAbort); });
    for (threading::Thread& thread : threads) thread.join();
    meeting->check();
  });
  CAPTURE(of.name);
  REQUIRE(result.problem == "");
  CHECK(result.states > 10);
  std::printf("%s: %.3g interleavings of %lld states, in %lld runs\n", of.name,
              result.interleavings, static_cast<long long>(result.states),
              static_cast<long long>(result.runs));
}

}  // namespace

TEST_CASE("every interleaving: nothing happens") {
  check({.name = "a user's barrier"});
  check({.name = "statistics", .means = Means::kStatistics});
  check({.name = "ranks that work before they wait", .works = true});
  check({.name = "ranks that look before they sleep", .means = Means::kSpinning, .ranks = 2});
}

TEST_CASE("every interleaving: an abort at any point") {
  check({.name = "a user's barrier, abort", .abort = true});
}

TEST_CASE("every interleaving: a replica throws, or two") {
  for (int call = 0; call <= kCalls; ++call) {
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      check({.name = "a replica throws", .throws = {rank, call}});
    }
  }
  check({.name = "statistics, a replica throws", .means = Means::kStatistics, .throws = {1, 1}});
  check({.name = "ranks that look, one throws",
         .means = Means::kSpinning,
         .ranks = 2,
         .throws = {1, 1},
         .whims = {}});
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    check({.name = "a replica throws at work", .works = true, .throws_at_work = {rank, 0}});
  }
  check({.name = "two throw", .throws = {0, 1}, .throws_too = {2, 1}});
  check({.name = "two throw", .throws = {1, 0}, .throws_too = {2, 0}});
}

TEST_CASE("every interleaving: the callback throws") {
  for (int call = 0; call < kCalls; ++call) {
    check({.name = "the callback throws", .callback_throws = call});
    check({.name = "the callback throws, abort",
           .abort = true,
           .callback_throws = call,
           .whims = {}});
  }
}

TEST_CASE("every interleaving: a replica makes another call") {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    check({.name = "a replica strays", .strays = {rank, 1}});
  }
}

TEST_CASE("every interleaving: a replica stalls") {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    for (int call = 0; call < kCalls; ++call) {
      check({.name = "a replica stalls", .stalls = {rank, call}, .watchdog = true, .whims = {}});
    }
  }
  check({.name = "all stall at any point", .ranks = 2, .watchdog = true, .whims = {.stalls = 1}});
}

}  // namespace lockstep
