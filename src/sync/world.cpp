#include "lockstep/sync/world.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<int> others(int process, int processes) {
  std::vector<int> all(static_cast<std::size_t>(processes));
  std::iota(all.begin(), all.end(), 0);
  all.erase(all.begin() + process);
  return all;
}

}  // namespace

std::vector<int> RankLayout::peers() const { return others(process, processes()); }

int RankLayout::process_of(int rank) const {
  const auto after = std::upper_bound(first.begin(), first.end(), rank);
  return static_cast<int>(after - first.begin()) - 1;
}

std::vector<int> RankLayout::own_of(const std::vector<int>& ranks) const {
  std::vector<int> own;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(own),
               [this](int rank) { return process_of(rank) == process; });
  return own;
}

std::string RankLayout::describe(int of_process) const {
  const auto index = static_cast<std::size_t>(of_process);
  std::vector<int> ranks(static_cast<std::size_t>(first[index + 1] - first[index]));
  std::iota(ranks.begin(), ranks.end(), first[index]);
  return concat("process ", of_process, " (", hosts[index], ", ", describe_ranks(ranks), ")");
}

std::string RankLayout::describe_rank(int rank) const {
  std::string text =
      concat("replica ", rank, " (", to_string(devices[static_cast<std::size_t>(rank)]));
  if (processes() > 1) {
    const int owner = process_of(rank);
    text += concat(" of process ", owner, " on ", hosts[static_cast<std::size_t>(owner)]);
  }
  return text + ")";
}

std::string RankLayout::placement(const std::string& own) const {
  if (processes() == 1) return own;
  bool alike = true;
  for (int i = 0; i <= processes(); ++i) {
    alike = alike && first[static_cast<std::size_t>(i)] == i * own_ranks();
  }
  return concat(own, alike ? " in each of " : " and others in ", processes(), " processes");
}

RankLayout make_rank_layout(World& world, std::span<const Device> devices) {
  RankLayout layout{world.process(), {0}, {}, world.hosts()};
  for (const Bytes& theirs : world.all_gather(std::as_bytes(devices))) {
    const std::size_t before = layout.devices.size();
    layout.devices.resize(before + theirs.size() / sizeof(Device));
    if (!theirs.empty()) std::memcpy(&layout.devices[before], theirs.data(), theirs.size());
    layout.first.push_back(static_cast<int>(layout.devices.size()));
  }
  return layout;
}

World& World::alone() {
  static World world;
  return world;
}

std::vector<Bytes> World::all_gather(std::span<const std::byte> own) {
  const auto processes = static_cast<std::size_t>(size());
  const std::vector<std::span<const std::byte>> out(processes, own);
  std::vector<Bytes> in(processes);
  exchange(kControlChannel, others(process(), size()), out, in, [] { return false; });
  in[static_cast<std::size_t>(process())].assign(own.begin(), own.end());
  return in;
}

std::vector<std::string> World::all_gather(const std::string& own) {
  std::vector<std::string> texts;
  for (const Bytes& bytes : all_gather(bytes_of(own))) texts.push_back(text_of(bytes));
  return texts;
}

std::string World::broadcast(const std::string& own) {
  return all_gather(first() ? own : std::string()).front();
}

std::string World::from_first(const std::function<std::string()>& make) {
  return broadcast(first() ? make() : std::string());
}

std::optional<std::string> World::to_others(const std::function<std::string()>& make) {
  if (size() == 1) return std::nullopt;
  std::string made = from_first(make);
  return first() ? std::nullopt : std::optional(std::move(made));
}

std::optional<int> World::first_to_differ(const std::string& own) {
  const std::vector<std::string> all = all_gather(own);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& text) { return text != all.front(); });
  if (other == all.end()) return std::nullopt;
  return static_cast<int>(other - all.begin());
}

void World::exchange(int channel, std::span<const int> peers,
                     std::span<const std::span<const std::byte>> out, std::span<Bytes> in,
                     const std::function<bool()>& stop) {
  if (peers.empty()) return;
  for (const int peer : peers) {
    bytes_given_ += static_cast<std::int64_t>(out[static_cast<std::size_t>(peer)].size());
  }
  carry(channel, peers, out, in, stop);
}

}  // namespace lockstep
