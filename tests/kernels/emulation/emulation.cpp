#include "kernels/emulation.h"

#include <sys/mman.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <typeindex>
#include <vector>

#include "support/fibre_context.h"

namespace lockstep::emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{132} << 10;
constexpr int kWarpLanes = 32;
constexpr std::size_t kBlocksUnderWay = 3;

enum class State { kReady, kAtBarrier, kInWarp, kDone };

struct Warp {
  // Two rounds in turn: nobody reaches round n + 2 before everybody has read round n.
  std::array<std::array<std::uint64_t, kWarpLanes>, 2> values{};
  std::array<unsigned, 2> arrived{};  // bit per lane
};

struct Block;

/// A thread of a block.
struct Thread {
  Position position;
  Block* block = nullptr;
  int index = 0;  // in its block
  State state = State::kReady;
  int barriers = 0;
  bool has_waited = false;  // for the kernel before
  unsigned warp_round = 0;
  int lane() const { return index % kWarpLanes; }
};

/// Memory of stacks whose ends, where almost all of a thread's accesses are, lie in different sets
/// of the processor's caches.
class Stack {
 public:
  explicit Stack(std::size_t number) : bytes_(kStackBytes - number % kSets * kLines * kLineBytes) {
    data_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Stack() { munmap(data_, kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kLineBytes = 64, kSets = 64, kLines = 3;
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// Does one thread after the other, on one stack.
struct Fibre : Thread {
  explicit Fibre(std::size_t number) : stack(number) {}
  const Stack stack;
  test::FibreContext context;
  bool started = false;
};

/// Fibres that have nothing to do.
class FibrePool {
 public:
  Fibre* take(const Thread& thread, void (*entry)()) {
    if (free_.empty()) {
      free_.push_back(all_.emplace_back(std::make_unique<Fibre>(all_.size())).get());
    }
    Fibre* fibre = free_.back();
    free_.pop_back();
    static_cast<Thread&>(*fibre) = thread;
    if (!fibre->started) {
      fibre->context.start(fibre->stack.data(), fibre->stack.bytes(), entry);
    }
    fibre->started = true;
    return fibre;
  }
  /// One that is in the midst of its thread forgets it.
  void give(Fibre* fibre) {
    fibre->started = fibre->state == State::kDone;
    free_.push_back(fibre);
  }

 private:
  std::vector<std::unique_ptr<Fibre>> all_;
  std::vector<Fibre*> free_;
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

struct Block {
  std::vector<Fibre*> fibres;
  std::vector<Warp> warps;
  std::map<std::type_index, std::unique_ptr<void, FreeMemory>> shared;
  const std::type_info* last_type = nullptr;  // that was asked for, and its memory
  void* last_shared = nullptr;
  int at_barrier = 0, done = 0;
};

class Scheduler {
 public:
  void run(dim3 grid, dim3 block, const std::function<void()>& thread, bool dependent);
  Fibre& current() { return *current_; }
  void yield();
  [[noreturn]] void fibre_main();
  void check_has_waited() const;
  int most_barriers = 0;

 private:
  std::unique_ptr<Block> start_block(std::size_t number);
  void finish(Block& block);
  void drop_blocks();
  Fibre* draw();
  void go_on_with(Fibre& fibre);
  Block& resume(Fibre& fibre);
  [[noreturn]] void stuck() const;

  dim3 grid_, block_size_;
  const std::function<void()>* thread_ = nullptr;
  bool dependent_ = false;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Block>> under_way_;
  std::vector<Fibre*> ready_;
  Fibre* current_ = nullptr;
  test::FibreContext main_;
  FibrePool fibres_;
  std::exception_ptr failure_;

  friend void lockstep::emulation::sync_threads();
  friend const std::uint64_t* lockstep::emulation::exchange_in_warp(unsigned, std::uint64_t);
  friend void lockstep::emulation::give_way();
  void make_ready(Fibre& fibre) {
    fibre.state = State::kReady;
    ready_.push_back(&fibre);
  }
};

Scheduler& scheduler() {
  static Scheduler instance;
  return instance;
}

Options current_options;
std::int64_t launch_count = 0;
std::int64_t dependent_count = 0;

[[noreturn]] void enter_fibre() { scheduler().fibre_main(); }

void Scheduler::fibre_main() {
  current_->context.arrived();
  while (true) {
    try {
      (*thread_)();
      check_has_waited();
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
    current_->state = State::kDone;
    ++current_->block->done;
    yield();  // until the fibre has another thread to do
  }
}

void Scheduler::check_has_waited() const {
  if (!dependent_ || current_->has_waited) return;
  throw std::logic_error(
      "emulation: a thread of a dependent launch goes on without waiting for the kernel before it");
}

std::unique_ptr<Block> Scheduler::start_block(std::size_t number) {
  auto block = std::make_unique<Block>();
  const unsigned threads = block_size_.x * block_size_.y * block_size_.z;
  block->warps.resize((threads + kWarpLanes - 1) / kWarpLanes);
  const auto linear = static_cast<unsigned>(number);
  for (unsigned index = 0; index < threads; ++index) {
    Thread thread;
    thread.block = block.get();
    thread.index = static_cast<int>(index);
    thread.position = {{index % block_size_.x, index / block_size_.x % block_size_.y,
                        index / block_size_.x / block_size_.y},
                       {linear % grid_.x, linear / grid_.x % grid_.y, linear / grid_.x / grid_.y},
                       block_size_,
                       grid_};
    Fibre* fibre = fibres_.take(thread, enter_fibre);
    make_ready(*fibre);
    block->fibres.push_back(fibre);
  }
  return block;
}

void Scheduler::finish(Block& block) {
  for (Fibre* fibre : block.fibres) {
    most_barriers = std::max(most_barriers, fibre->barriers);
    fibres_.give(fibre);
  }
}

void Scheduler::drop_blocks() {
  for (const auto& block : under_way_) {
    for (Fibre* fibre : block->fibres) fibres_.give(fibre);
  }
  under_way_.clear();
}

Fibre* Scheduler::draw() {
  const std::size_t index = random_() % ready_.size();
  std::swap(ready_[index], ready_.back());
  Fibre* fibre = ready_.back();
  ready_.pop_back();
  return fibre;
}

void Scheduler::go_on_with(Fibre& fibre) {
  current_ = &fibre;
  position_of_running = &fibre.position;
}

/// The block of the thread that comes back.
Block& Scheduler::resume(Fibre& fibre) {
  go_on_with(fibre);
  main_.switch_to(fibre.context);
  position_of_running = nullptr;
  return *current_->block;
}

// From thread to thread, without the way over the loop of `run`, which takes as long again.
void Scheduler::yield() {
  Fibre& left = *current_;
  const bool ends_block = left.block->done == static_cast<int>(left.block->fibres.size());
  if (ends_block || failure_ || ready_.empty()) return left.context.switch_to(main_);
  Fibre& next = *draw();
  if (&next == &left) return;
  go_on_with(next);
  left.context.switch_to(next.context);
}

void Scheduler::stuck() const {
  int done = 0, barrier = 0, warp = 0;
  for (const auto& block : under_way_) {
    for (const auto& fibre : block->fibres) {
      if (fibre->state == State::kDone) ++done;
      if (fibre->state == State::kAtBarrier) ++barrier;
      if (fibre->state == State::kInWarp) ++warp;
    }
  }
  throw std::logic_error("emulation: the kernel hangs: " + std::to_string(barrier) +
                         " threads wait at __syncthreads, " + std::to_string(warp) +
                         " in warp operations, " + std::to_string(done) + " have ended");
}

void Scheduler::run(dim3 grid, dim3 block_size, const std::function<void()>& thread,
                    bool dependent) {
  dependent_ = dependent;
  grid_ = grid;
  block_size_ = block_size;
  thread_ = &thread;
  failure_ = nullptr;
  most_barriers = 0;
  random_.seed(current_options.seed + static_cast<std::uint64_t>(launch_count));
  ready_.clear();
  drop_blocks();
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  std::vector<std::size_t> order(current_options.only_last_block ? 1 : blocks);
  std::iota(order.begin(), order.end(), blocks - order.size());
  std::shuffle(order.begin(), order.end(), random_);
  while ((!order.empty() || !under_way_.empty()) && !failure_) {
    while (!order.empty() && under_way_.size() < kBlocksUnderWay) {
      const std::size_t number = order.back();
      order.pop_back();
      if (static_cast<int>(number) == current_options.skipped_block) continue;
      under_way_.push_back(start_block(number));
    }
    if (under_way_.empty()) break;
    if (ready_.empty()) stuck();
    Block& block = resume(*draw());
    if (block.done < static_cast<int>(block.fibres.size())) continue;
    finish(block);
    std::erase_if(under_way_, [&](const auto& other) { return other.get() == &block; });
  }
  drop_blocks();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace

const Position* position_of_running = nullptr;
Options& options() { return current_options; }
Dispatch& dispatch() {
  static Dispatch current = nullptr;
  return current;
}
int barriers_of_last_launch() { return scheduler().most_barriers; }
std::int64_t launches() { return launch_count; }
std::int64_t dependent_launches() { return dependent_count; }

void run(dim3 grid, dim3 block, const std::function<void()>& thread, bool dependent) {
  if (std::size_t{block.x} * block.y * block.z > 1024) {
    throw std::logic_error("emulation: a block has at most 1024 threads");
  }
  ++launch_count;
  if (dependent) ++dependent_count;
  scheduler().run(grid, block, thread, dependent);
}

void wait_for_previous_kernel() { scheduler().current().has_waited = true; }

void sync_threads() {
  Scheduler& s = scheduler();
  s.check_has_waited();
  Fibre& fibre = s.current();
  Block& block = *fibre.block;
  if (fibre.barriers++ == current_options.skipped_barrier) return give_way();
  fibre.state = State::kAtBarrier;
  if (++block.at_barrier == static_cast<int>(block.fibres.size())) {
    block.at_barrier = 0;
    for (Fibre* other : block.fibres) s.make_ready(*other);
  }
  s.yield();
}

void give_way() {
  Scheduler& s = scheduler();
  s.check_has_waited();
  s.make_ready(s.current());
  s.yield();
}

const std::uint64_t* exchange_in_warp(unsigned mask, std::uint64_t mine) {
  Scheduler& s = scheduler();
  Fibre& fibre = s.current();
  Block& block = *fibre.block;
  const int warp_index = fibre.index / kWarpLanes;
  const int lanes =
      std::min<int>(kWarpLanes, static_cast<int>(block.fibres.size()) - warp_index * kWarpLanes);
  const unsigned present = lanes == kWarpLanes ? 0xffffffffU : (1U << lanes) - 1;
  Warp& warp = block.warps[static_cast<std::size_t>(warp_index)];
  s.check_has_waited();
  const unsigned round = fibre.warp_round++ & 1U;
  if ((mask & present) != present) {
    throw std::logic_error("emulation: kernels use warp operations with whole warps only");
  }
  warp.values[round][static_cast<std::size_t>(fibre.lane())] = mine;
  warp.arrived[round] |= 1U << fibre.lane();
  fibre.state = State::kInWarp;
  if (warp.arrived[round] == present) {
    warp.arrived[round] = 0;
    for (int lane = 0; lane < lanes; ++lane) {
      s.make_ready(*block.fibres[static_cast<std::size_t>(warp_index * kWarpLanes + lane)]);
    }
  }
  s.yield();
  return warp.values[round].data();
}

int lane() { return scheduler().current().lane(); }

void* shared_memory(const std::type_info& type, std::size_t bytes, std::size_t alignment) {
  Block& block = *scheduler().current().block;
  if (block.last_type == &type) return block.last_shared;
  auto& memory = block.shared[std::type_index(type)];
  if (!memory) {
    alignment = std::max(alignment, sizeof(void*));
    void* data = nullptr;
    if (posix_memalign(&data, alignment, bytes) != 0) throw std::bad_alloc();
    std::memset(data, 0xFF, bytes);
    memory.reset(data);
  }
  block.last_type = &type;
  block.last_shared = memory.get();
  return memory.get();
}

}  // namespace lockstep::emulation

// AddressSanitizer keeps the frames of returned functions where a use after return is looked for,
// by default from GCC 14 on: each fibre would get such a stack of its own, and every switch pays.
extern "C" const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
