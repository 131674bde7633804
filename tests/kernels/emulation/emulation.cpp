#include "kernels/emulation.h"

#include <sys/mman.h>
#include <ucontext.h>

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

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace lockstep::emulation {
namespace {

constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr int kWarpLanes = 32;
constexpr std::size_t kBlocksUnderWay = 3;

// A switch between stacks, made known to AddressSanitizer.
struct Context {
  ucontext_t machine{};
  const void* stack = nullptr;  // bottom
  std::size_t stack_bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

void arrived([[maybe_unused]] Context& to, [[maybe_unused]] Context* from) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(to.fake_stack, &stack, &bytes);
  if (from != nullptr) {
    from->stack = stack;
    from->stack_bytes = bytes;
  }
#endif
}

void switch_to(Context& from, Context& to, [[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
  swapcontext(&from.machine, &to.machine);
  arrived(from, nullptr);
}

class StackPool {
 public:
  ~StackPool() {
    for (void* stack : all_) munmap(stack, kStackBytes);
  }
  void* take() {
    if (!free_.empty()) {
      void* stack = free_.back();
      free_.pop_back();
#if defined(__SANITIZE_ADDRESS__)
      __asan_unpoison_memory_region(stack, kStackBytes);  // its last fibre never returned
#endif
      return stack;
    }
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    all_.push_back(stack);
    return stack;
  }
  void give(void* stack) { free_.push_back(stack); }

 private:
  std::vector<void*> all_, free_;
};

enum class State { kReady, kAtBarrier, kInWarp, kDone };

struct Warp {
  // Two rounds in turn: nobody reaches round n + 2 before everybody has read round n.
  std::array<std::array<std::uint64_t, kWarpLanes>, 2> values{};
  std::array<unsigned, 2> arrived{};  // bit per lane
};

struct Block;

struct Fibre {
  Context context;
  Position position;
  Block* block = nullptr;
  State state = State::kReady;
  int barriers = 0;
  bool has_waited = false;  // for the kernel before
  unsigned warp_round = 0;
  int index = 0;  // in its block
  int lane() const { return index % kWarpLanes; }
};

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

struct Block {
  std::vector<std::unique_ptr<Fibre>> fibres;
  std::vector<Warp> warps;
  std::map<std::type_index, std::unique_ptr<void, FreeMemory>> shared;
  int at_barrier = 0, done = 0;
};

class Scheduler {
 public:
  void run(dim3 grid, dim3 block, const std::function<void()>& thread, bool dependent);
  Fibre& current() { return *current_; }
  void yield() { switch_to(current_->context, main_, false); }
  void fibre_main();
  void check_has_waited() const;
  int most_barriers = 0;

 private:
  std::unique_ptr<Block> start_block(std::size_t number);
  void finish(Block& block);
  Fibre* draw();
  void resume(Fibre& fibre);
  [[noreturn]] void stuck() const;

  dim3 grid_, block_size_;
  const std::function<void()>* thread_ = nullptr;
  bool dependent_ = false;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Block>> under_way_;
  std::vector<Fibre*> ready_;
  Fibre* current_ = nullptr;
  Context main_;
  StackPool stacks_;
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

void enter_fibre() { scheduler().fibre_main(); }

void Scheduler::fibre_main() {
  arrived(current_->context, &main_);
  try {
    (*thread_)();
    check_has_waited();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
  current_->state = State::kDone;
  ++current_->block->done;
  switch_to(current_->context, main_, true);
}

void Scheduler::check_has_waited() const {
  if (!dependent_ || current_->has_waited) return;
  throw std::logic_error(
      "emulation: a thread of a dependent launch goes on without waiting for the kernel before it");
}

void start_on(void* stack, Context& context) {
  context.stack = stack;
  context.stack_bytes = kStackBytes;
  getcontext(&context.machine);
  context.machine.uc_stack.ss_sp = stack;
  context.machine.uc_stack.ss_size = kStackBytes;
  context.machine.uc_link = nullptr;
  makecontext(&context.machine, enter_fibre, 0);
}

std::unique_ptr<Block> Scheduler::start_block(std::size_t number) {
  auto block = std::make_unique<Block>();
  const unsigned threads = block_size_.x * block_size_.y * block_size_.z;
  block->warps.resize((threads + kWarpLanes - 1) / kWarpLanes);
  const auto linear = static_cast<unsigned>(number);
  for (unsigned index = 0; index < threads; ++index) {
    auto fibre = std::make_unique<Fibre>();
    fibre->block = block.get();
    fibre->index = static_cast<int>(index);
    fibre->position = {{index % block_size_.x, index / block_size_.x % block_size_.y,
                        index / block_size_.x / block_size_.y},
                       {linear % grid_.x, linear / grid_.x % grid_.y, linear / grid_.x / grid_.y},
                       block_size_,
                       grid_};
    start_on(stacks_.take(), fibre->context);
    make_ready(*fibre);
    block->fibres.push_back(std::move(fibre));
  }
  return block;
}

void Scheduler::finish(Block& block) {
  for (const auto& fibre : block.fibres) {
    most_barriers = std::max(most_barriers, fibre->barriers);
    stacks_.give(const_cast<void*>(fibre->context.stack));
  }
}

Fibre* Scheduler::draw() {
  const std::size_t index = random_() % ready_.size();
  std::swap(ready_[index], ready_.back());
  Fibre* fibre = ready_.back();
  ready_.pop_back();
  return fibre;
}

void Scheduler::resume(Fibre& fibre) {
  current_ = &fibre;
  switch_to(main_, fibre.context, false);
  current_ = nullptr;
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
  under_way_.clear();
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
    Fibre& fibre = *draw();
    Block& block = *fibre.block;
    resume(fibre);
    if (block.done < static_cast<int>(block.fibres.size())) continue;
    finish(block);
    std::erase_if(under_way_, [&](const auto& other) { return other.get() == &block; });
  }
  under_way_.clear();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace

Position& here() { return scheduler().current().position; }
Options& options() { return current_options; }
Dispatch& dispatch() {
  static Dispatch current = nullptr;
  return current;
}
Loop& loop() {
  static Loop current = nullptr;
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
    for (const auto& other : block.fibres) s.make_ready(*other);
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
  auto& memory = scheduler().current().block->shared[std::type_index(type)];
  if (!memory) {
    alignment = std::max(alignment, sizeof(void*));
    void* data = nullptr;
    if (posix_memalign(&data, alignment, bytes) != 0) throw std::bad_alloc();
    std::memset(data, 0xFF, bytes);
    memory.reset(data);
  }
  return memory.get();
}

}  // namespace lockstep::emulation

// AddressSanitizer keeps the frames of returned functions where a use after return is looked for,
// by default from GCC 14 on: each fibre would get such a stack of its own, and every switch pays.
extern "C" const char* __asan_default_options();  // NOLINT(bugprone-reserved-identifier)
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
