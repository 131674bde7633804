#include "interleavings/scheduler.h"

#include <cxxabi.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "support/fibre_context.h"

namespace lockstep::test {
namespace {

constexpr int kMain = 0;  // the thread that runs the program
constexpr int kMaxThreads = 8;
constexpr int kNobody = -1;
constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::ptrdiff_t kCleared = 4096;  // of a stack: about what lies on it between operations
constexpr std::int64_t kForever = Scheduler::kNever.time_since_epoch().count();
constexpr std::size_t kEndlessAfter = 20'000;  // operations in one run

int running = kNobody;  // thread

/// Where a thread of the program allocates. What is handed out lies at the same address whenever
/// the thread does the same, so that the same bytes mean the same.
class Heap {
 public:
  bool has(const void* memory) const {
    const auto* const byte = static_cast<const std::byte*>(memory);
    return std::less_equal<>()(memory_.data(), byte) &&
           std::less<>()(byte, memory_.data() + memory_.size());
  }
  void* allocate(std::size_t bytes) {
    constexpr std::size_t kAlignment = alignof(std::max_align_t);
    const std::size_t begin = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (used_ > memory_.size()) throw std::bad_alloc();
    ++blocks_;
    std::memset(memory_.data() + begin, 0, used_ - begin);
    return memory_.data() + begin;
  }
  void free() {
    if (--blocks_ == 0) used_ = 0;
  }
  void clear() { used_ = blocks_ = 0; }
  std::span<const std::byte> bytes() const { return {memory_.data(), used_}; }

 private:
  alignas(std::max_align_t) std::array<std::byte, std::size_t{32} << 10> memory_;
  std::size_t used_ = 0, blocks_ = 0;
};

std::array<Heap, kMaxThreads> heaps;
bool scheduler_allocates = false;

/// What the scheduler itself allocates on a thread of the program is none of the program's.
struct OwnMemory {
  const bool before = std::exchange(scheduler_allocates, true);
  ~OwnMemory() { scheduler_allocates = before; }
};

enum class Operation : int {
  kNone,
  kStart,
  kLock,
  kWait,
  kNotifyOne,
  kNotifyAll,
  kAccess,
  kYield,
  kSleep,
  kJoin
};

const char* to_string(Operation operation) {
  constexpr const char* kNames[] = {"ends",      "starts",    "locks",           "wakes and locks",
                                    "notifies",  "notifies",  "reads or writes", "yields",
                                    "has slept", "has joined"};
  return kNames[static_cast<int>(operation)];
}

/// Where a thread is. Part of the state, byte by byte.
struct Position {
  Operation operation = Operation::kNone;  // the next one; kNone: there is none
  int notified = 0;
  const void* object = nullptr;  // mutex or condition
  Scheduler::Lock* lock = nullptr;
  std::int64_t until = 0;          // ns
  std::int64_t awaited = kNobody;  // thread to join
};
static_assert(std::has_unique_object_representations_v<Position>);

/// What of the state is neither in the memory of threads nor on their stacks.
struct Globals {
  std::array<Position, kMaxThreads> positions;
  std::int64_t now = 0;  // ns
  int threads = 0;
  int wake_ups = 0;  // that are left
  int stalls = 0;
  int unused = 0;
};
static_assert(std::has_unique_object_representations_v<Globals>);

/// A way to go on.
struct Choice {
  int thread = kNobody;    // kNobody: time goes by
  int notified = kNobody;  // by notify_one
  bool whim = false;
};

/// A state on the way of the present run.
struct Step {
  std::uint64_t state = 0;
  std::size_t choices = 0;
  std::size_t chosen = 0;
  double interleavings = 0;  // through the choices before
};

}  // namespace

struct Scheduler::Impl {
  struct Fibre {
    std::vector<std::byte> stack = std::vector<std::byte>(kStackBytes);
    FibreContext context;
    std::function<void()> body;
    std::vector<const Lock*> held;
    // What the C++ runtime knows of the exceptions that a thread handles.
    std::array<std::byte, 2 * sizeof(void*)> exceptions{};
  };

  void begin_run(const std::function<void()>& program);
  void run(const std::function<void()>& program);
  void list_choices();
  void list_choices_of(int thread);
  bool has_ended(int thread) const { return position(thread).operation == Operation::kNone; }
  bool time_is_awaited() const;
  std::size_t decide();
  std::uint64_t state() const;
  void take(const Choice& choice);
  void acquire(int thread, Lock& lock);
  void resume(int thread);
  void stop_at(Operation operation, const void* object = nullptr, Lock* lock = nullptr,
               std::int64_t until = kForever, int awaited = kNobody);
  int start(std::function<void()> body);
  [[noreturn]] void fibre_main();
  bool is_private(const void* object);
  bool is_guarded(const void* atomic);
  bool next_way();
  std::string describe_trace() const;

  Position& position(int thread) { return globals.positions[static_cast<std::size_t>(thread)]; }
  const Position& position(int thread) const {
    return globals.positions[static_cast<std::size_t>(thread)];
  }
  Fibre& fibre(int thread) { return fibres[static_cast<std::size_t>(thread)]; }

  std::array<Fibre, kMaxThreads> fibres;
  FibreContext outside;
  Whims whims;
  Globals globals;
  std::vector<Choice> choices;
  std::vector<Step> way;                            // of decisions from the program's beginning
  std::size_t depth = 0;                            // of the present run in it
  std::unordered_map<std::uint64_t, double> known;  // states: interleavings from there on
  bool in_known = false;                            // the present run: nothing new comes
  std::unordered_map<const void*, std::vector<const Lock*>> guards;  // see is_guarded
  std::unordered_map<const void*, int> owners;                       // see is_private
  bool begin_anew = false;
  std::vector<std::pair<int, Operation>> trace;  // of the present run
  Result result;
};

void Scheduler::Impl::begin_run(const std::function<void()>& program) {
  for (Fibre& of : fibres) of.body = nullptr;
  for (Heap& heap : heaps) heap.clear();
  globals = {};
  globals.wake_ups = whims.wake_ups;
  globals.stalls = whims.stalls;
  trace.clear();
  depth = 0;
  in_known = false;
  start(program);
}

void Scheduler::Impl::run(const std::function<void()>& program) {
  begin_run(program);
  while (result.problem.empty()) {
    list_choices();
    if (choices.empty()) {
      if (!has_ended(kMain)) result.problem = "every thread waits for another";
      break;
    }
    take(choices[decide()]);
    if (trace.size() > kEndlessAfter) result.problem = "there is no end";
  }
  ++result.runs;
  if (!result.problem.empty()) result.problem += ":" + describe_trace();
}

void Scheduler::Impl::list_choices() {
  choices.clear();
  // A start is nothing that others notice.
  for (int thread = 0; thread < globals.threads; ++thread) {
    if (position(thread).operation == Operation::kStart) return choices.push_back({thread});
  }
  for (int thread = 0; thread < globals.threads; ++thread) list_choices_of(thread);
  if ((choices.empty() || globals.stalls > 0) && time_is_awaited()) {
    choices.push_back({.whim = !choices.empty()});
  }
}

void Scheduler::Impl::list_choices_of(int thread) {
  const Position& at = position(thread);
  switch (at.operation) {
    case Operation::kNone:
      return;
    case Operation::kLock:
      if (at.lock->owner == kNobody) choices.push_back({thread});
      return;
    case Operation::kWait:
      if (at.lock->owner != kNobody) return;
      if (at.notified != 0 || globals.now >= at.until) {
        choices.push_back({thread});
      } else if (globals.wake_ups > 0) {
        choices.push_back({.thread = thread, .whim = true});
      }
      return;
    case Operation::kNotifyOne: {
      const std::size_t before = choices.size();
      for (int other = 0; other < globals.threads; ++other) {
        const Position& of = position(other);
        if (of.operation == Operation::kWait && of.object == at.object && of.notified == 0) {
          choices.push_back({.thread = thread, .notified = other});
        }
      }
      if (choices.size() == before) choices.push_back({thread});
      return;
    }
    case Operation::kSleep:
      if (globals.now >= at.until) choices.push_back({thread});
      return;
    case Operation::kJoin:
      if (has_ended(static_cast<int>(at.awaited))) choices.push_back({thread});
      return;
    default:
      choices.push_back({thread});
  }
}

bool Scheduler::Impl::time_is_awaited() const {
  return std::any_of(globals.positions.begin(), globals.positions.end(), [&](const Position& at) {
    return at.operation != Operation::kNone && at.until != kForever && at.until > globals.now;
  });
}

std::uint64_t Scheduler::Impl::state() const {
  std::uint64_t hash = XXH3_64bits(&globals, sizeof globals);
  const auto add = [&](std::span<const std::byte> bytes) {
    hash = XXH3_64bits_withSeed(bytes.data(), bytes.size(), hash);
  };
  for (int thread = 0; thread < globals.threads; ++thread) {
    add(heaps[static_cast<std::size_t>(thread)].bytes());
    if (!has_ended(thread)) add(fibres[static_cast<std::size_t>(thread)].context.left_there());
  }
  return hash;
}

std::size_t Scheduler::Impl::decide() {
  if (choices.size() == 1 || in_known) return 0;
  if (depth == way.size()) {
    const std::uint64_t here = state();
    const auto found = known.find(here);
    if (found != known.end()) {
      way.back().interleavings += found->second;
      in_known = true;
      return 0;
    }
    way.push_back({.state = here, .choices = choices.size()});
  }
  return way[depth++].chosen;
}

void Scheduler::Impl::take(const Choice& choice) {
  if (choice.thread == kNobody) {
    trace.emplace_back(kNobody, Operation::kNone);
    globals.stalls -= choice.whim ? 1 : 0;
    std::int64_t next = kForever;
    for (const Position& at : globals.positions) {
      if (at.operation != Operation::kNone && at.until > globals.now)
        next = std::min(next, at.until);
    }
    globals.now = next;
    return;
  }
  Position& at = position(choice.thread);
  trace.emplace_back(choice.thread, at.operation);
  if (at.lock != nullptr) acquire(choice.thread, *at.lock);
  if (at.operation == Operation::kWait && choice.whim) --globals.wake_ups;
  if (choice.notified != kNobody) position(choice.notified).notified = 1;
  if (at.operation == Operation::kNotifyAll) {
    for (Position& of : globals.positions) {
      if (of.operation == Operation::kWait && of.object == at.object) of.notified = 1;
    }
  }
  at = {.until = kForever};
  resume(choice.thread);
}

void Scheduler::Impl::acquire(int thread, Lock& lock) {
  const OwnMemory own;
  lock.owner = thread;
  fibre(thread).held.push_back(&lock);
}

void Scheduler::Impl::resume(int thread) {
  Fibre& to = fibre(thread);
  void* const exceptions = __cxxabiv1::__cxa_get_globals();
  running = thread;
  std::memcpy(exceptions, to.exceptions.data(), to.exceptions.size());
  outside.switch_to(to.context);
  std::memcpy(to.exceptions.data(), exceptions, to.exceptions.size());
  std::memset(exceptions, 0, to.exceptions.size());
  running = kNobody;
}

/// The running thread does this next, when it is its turn.
void Scheduler::Impl::stop_at(Operation operation, const void* object, Lock* lock,
                              std::int64_t until, int awaited) {
  Position& at = position(running);
  at = {.operation = operation, .object = object, .lock = lock, .until = until, .awaited = awaited};
  fibre(running).context.switch_to(outside);
}

int Scheduler::Impl::start(std::function<void()> body) {
  const OwnMemory own;
  const int thread = globals.threads++;
  if (thread >= kMaxThreads) throw std::length_error("too many threads");
  Fibre& of = fibre(thread);
  std::fill(of.stack.end() - kCleared, of.stack.end(), std::byte{0});
  of.body = std::move(body);
  of.held.clear();
  of.exceptions = {};
  of.context.start(of.stack.data(), of.stack.size(), [] { scheduler().impl_->fibre_main(); });
  position(thread) = {.operation = Operation::kStart, .until = kForever};
  return thread;
}

void Scheduler::Impl::fibre_main() {
  Fibre& self = fibre(running);
  self.context.arrived();
  try {
    self.body();
  } catch (const std::exception& error) {
    scheduler().fail(std::string("a thread throws: ") + error.what());
  }
  position(running) = {.until = kForever};
  self.body = nullptr;
  self.context.switch_to(outside);
  std::abort();
}

/// Whether one thread alone uses this object. Then there is nothing to decide. When another one
/// turns out to use it, too, all begins anew.
bool Scheduler::Impl::is_private(const void* object) {
  const OwnMemory own;
  const auto [found, first] = owners.try_emplace(object, running);
  if (found->second == running) return true;
  begin_anew = begin_anew || found->second != kNobody;
  found->second = kNobody;
  return false;
}

/// Whether all threads hold the same mutex whenever they use this atomic. Nobody else can use it at
/// the same time then, and so there is nothing to decide. When an atomic turns out not to be, all
/// begins anew.
bool Scheduler::Impl::is_guarded(const void* atomic) {
  const OwnMemory own;
  const std::vector<const Lock*>& held = fibre(running).held;
  const auto [found, first] = guards.try_emplace(atomic, held);
  std::vector<const Lock*>& guarding = found->second;
  if (first || guarding.empty()) return !guarding.empty();
  std::erase_if(guarding, [&](const Lock* lock) {
    return std::find(held.begin(), held.end(), lock) == held.end();
  });
  begin_anew = begin_anew || guarding.empty();
  return !guarding.empty();
}

/// Towards the next interleaving. False: there is none.
bool Scheduler::Impl::next_way() {
  if (std::exchange(begin_anew, false)) {
    way.clear();
    known.clear();
    result.interleavings = 0;
    return true;
  }
  if (!in_known) (way.empty() ? result.interleavings : way.back().interleavings) += 1;
  while (!way.empty()) {
    Step& last = way.back();
    if (++last.chosen < last.choices) return true;
    const double through = last.interleavings;
    known.emplace(last.state, through);
    way.pop_back();
    (way.empty() ? result.interleavings : way.back().interleavings) += through;
  }
  return false;
}

std::string Scheduler::Impl::describe_trace() const {
  std::string text;
  int last = kNobody - 1;
  for (const auto& [thread, operation] : trace) {
    if (thread == kNobody) {
      text += "\n  time goes by";
    } else {
      text += thread == last ? ", " : "\n  thread " + std::to_string(thread) + " ";
      text += to_string(operation);
    }
    last = thread;
  }
  for (int thread = 0; thread < globals.threads; ++thread) {
    if (has_ended(thread)) continue;
    text += "\n  thread " + std::to_string(thread) + " has not ended; when it goes on, it " +
            to_string(position(thread).operation);
  }
  return text;
}

Scheduler::Scheduler() : impl_(std::make_unique<Impl>()) {}
Scheduler::~Scheduler() = default;

Scheduler::Result Scheduler::explore(const Whims& whims, const std::function<void()>& program) {
  impl_->whims = whims;
  impl_->result = {};
  impl_->way.clear();
  impl_->known.clear();
  impl_->guards.clear();
  impl_->owners.clear();
  impl_->begin_anew = false;
  do {
    impl_->run(program);
  } while (impl_->result.problem.empty() && impl_->next_way());
  impl_->result.states = static_cast<std::int64_t>(impl_->known.size());
  return impl_->result;
}

void Scheduler::yield() { impl_->stop_at(Operation::kYield); }

void Scheduler::sleep(std::chrono::nanoseconds time) {
  impl_->stop_at(Operation::kSleep, nullptr, nullptr, impl_->globals.now + time.count());
}

void Scheduler::join(int thread) {
  impl_->stop_at(Operation::kJoin, nullptr, nullptr, kForever, thread);
}

void Scheduler::fail(const std::string& problem) {
  const OwnMemory own;
  if (impl_->result.problem.empty()) impl_->result.problem = problem;
}

void Scheduler::lock(Lock& lock) {
  if (impl_->is_private(&lock)) return impl_->acquire(running, lock);
  impl_->stop_at(Operation::kLock, &lock, &lock);
}

// Until the thread's next operation nobody can tell whether it has the lock.
void Scheduler::unlock(Lock& lock) {
  lock.owner = kNobody;
  std::erase(impl_->fibre(running).held, &lock);
}

// What was looked at before the wait may change before it begins.
void Scheduler::wait(const void* condition, Lock& lock, TimePoint end) {
  impl_->is_private(condition);
  yield();
  unlock(lock);
  impl_->stop_at(Operation::kWait, condition, &lock, end.time_since_epoch().count());
}

void Scheduler::notify_one(const void* condition) {
  if (impl_->is_private(condition)) return;
  impl_->stop_at(Operation::kNotifyOne, condition);
}
void Scheduler::notify_all(const void* condition) {
  if (impl_->is_private(condition)) return;
  impl_->stop_at(Operation::kNotifyAll, condition);
}

void Scheduler::access(const void* atomic) {
  if (!impl_->is_guarded(atomic)) impl_->stop_at(Operation::kAccess);
}

int Scheduler::start(std::function<void()> body) { return impl_->start(std::move(body)); }

Scheduler::TimePoint Scheduler::now() const {
  return TimePoint(std::chrono::nanoseconds(impl_->globals.now));
}

Scheduler& scheduler() {
  static Scheduler only;
  return only;
}

}  // namespace lockstep::test

void* operator new(std::size_t bytes) {
  using namespace lockstep::test;
  if (running != kNobody && !scheduler_allocates) {
    return heaps[static_cast<std::size_t>(running)].allocate(bytes);
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  for (lockstep::test::Heap& heap : lockstep::test::heaps) {
    if (heap.has(memory)) return heap.free();
  }
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
