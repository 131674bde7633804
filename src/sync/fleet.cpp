#include "lockstep/sync/fleet.h"

#include <algorithm>
#include <cstring>
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

std::vector<int> Roster::peers() const { return others(process, processes()); }

int Roster::process_of(int rank) const {
  const auto after = std::upper_bound(first.begin(), first.end(), rank);
  return static_cast<int>(after - first.begin()) - 1;
}

std::string Roster::describe(int of_process) const {
  const auto index = static_cast<std::size_t>(of_process);
  std::vector<int> ranks(static_cast<std::size_t>(first[index + 1] - first[index]));
  std::iota(ranks.begin(), ranks.end(), first[index]);
  return concat("process ", of_process, " (", hosts[index], ", ", describe_ranks(ranks), ")");
}

std::string Roster::describe_rank(int rank) const {
  std::string text =
      concat("replica ", rank, " (", to_string(devices[static_cast<std::size_t>(rank)]));
  if (processes() > 1) {
    const int owner = process_of(rank);
    text += concat(" of process ", owner, " on ", hosts[static_cast<std::size_t>(owner)]);
  }
  return text + ")";
}

std::string Roster::placement(const std::string& own) const {
  if (processes() == 1) return own;
  bool alike = true;
  for (int i = 0; i <= processes(); ++i) {
    alike = alike && first[static_cast<std::size_t>(i)] == i * own_ranks();
  }
  return concat(own, alike ? " in each of " : " and others in ", processes(), " processes");
}

Roster make_roster(Fleet* fleet, std::span<const Device> devices) {
  if (fleet == nullptr) {
    return {0, {0, static_cast<int>(devices.size())}, {devices.begin(), devices.end()}, {""}};
  }
  Roster roster{fleet->process(), {0}, {}, fleet->hosts()};
  for (const Bytes& theirs : all_gather(*fleet, std::as_bytes(devices))) {
    const std::size_t before = roster.devices.size();
    roster.devices.resize(before + theirs.size() / sizeof(Device));
    std::memcpy(roster.devices.data() + before, theirs.data(), theirs.size());
    roster.first.push_back(static_cast<int>(roster.devices.size()));
  }
  return roster;
}

std::vector<Bytes> all_gather(Fleet& fleet, std::span<const std::byte> own) {
  const auto processes = static_cast<std::size_t>(fleet.processes());
  const std::vector<std::span<const std::byte>> out(processes, own);
  std::vector<Bytes> in(processes);
  fleet.exchange(kControlChannel, others(fleet.process(), fleet.processes()), out, in,
                 [] { return false; });
  in[static_cast<std::size_t>(fleet.process())].assign(own.begin(), own.end());
  return in;
}

std::vector<std::string> all_gather(Fleet& fleet, const std::string& own) {
  std::vector<std::string> texts;
  for (const Bytes& bytes : all_gather(fleet, bytes_of(own))) texts.push_back(text_of(bytes));
  return texts;
}

std::string broadcast(Fleet& fleet, const std::string& own) {
  return all_gather(fleet, fleet.process() == 0 ? own : std::string()).front();
}

}  // namespace lockstep
