#pragma once
// What the fake runtime's streams are captured into, and how a graph of it is done.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::fake_runtime {

enum class Kind { kKernel, kCopy, kFill, kEmpty, kWait, kRecord };  // the last two are no nodes

/// One thing that a captured stream was given, and what must be done before it.
struct Node {
  std::function<void()> work;
  Kind kind = Kind::kKernel;
  std::vector<std::size_t> after;
  int device = 0;
};

/// What streams are captured into. One thread at a time may add to it.
struct Capture {
  explicit Capture(CUstream_st* first) : origin(first) {}

  std::size_t add(Node node) {
    const bool alone = !busy.exchange(true);
    std::this_thread::sleep_for(std::chrono::microseconds(50));  // for others to come in
    valid = valid && alone;
    const std::lock_guard lock(mutex);
    nodes.push_back(std::move(node));
    busy = false;
    return nodes.size() - 1;
  }
  /// Whether all nodes are done before those that follow `last`.
  bool all_lead_to(const std::vector<std::size_t>& last) const {
    std::vector<bool> leads(nodes.size());
    std::vector<std::size_t> open = last;
    while (!open.empty()) {
      const std::size_t node = open.back();
      open.pop_back();
      if (leads[node]) continue;
      leads[node] = true;
      open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
    }
    return std::find(leads.begin(), leads.end(), false) == leads.end();
  }

  CUstream_st* const origin;
  std::atomic<bool> busy{false}, valid{true}, ended{false};
  std::mutex mutex;
  std::vector<Node> nodes;
};

/// How many follow a node of another device.
inline int edges_between_devices(const std::vector<Node>& nodes) {
  int edges = 0;
  for (const Node& node : nodes) {
    const std::set<std::size_t> after(node.after.begin(), node.after.end());
    for (const std::size_t before : after) edges += nodes[before].device == node.device ? 0 : 1;
  }
  return edges;
}

/// Does the nodes one by one, in any order that they allow.
inline void run_nodes(const std::vector<Node>& nodes, std::mt19937& random) {
  std::vector<std::size_t> waits(nodes.size()), ready;
  std::vector<std::vector<std::size_t>> followers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    waits[i] = nodes[i].after.size();
    for (const std::size_t before : nodes[i].after) followers[before].push_back(i);
    if (waits[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const std::size_t node = ready.back();
    ready.pop_back();
    nodes[node].work();
    for (const std::size_t next : followers[node]) {
      if (--waits[next] == 0) ready.push_back(next);
    }
  }
}

}  // namespace lockstep::fake_runtime
