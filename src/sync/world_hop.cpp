#include "sync/world_hop.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/check.h"
#include "sync/describe.h"

namespace lockstep {
namespace {

/// What a message has before the slots: the call, so that a process at another call is named.
struct Header {
  Direction direction = Direction::kOther;
  std::int32_t index = 0;
  std::int64_t channels = 0;
  std::int64_t slots = 0;
  char layer[104] = {};  // cut off where it is longer
};

struct SlotHeader {
  std::int64_t count = 0, parts = 0;
};

Header header_of(const SyncCall& call, std::size_t slots) {
  Header header;
  header.direction = call.direction;
  header.index = call.index;
  header.channels = call.channels;
  header.slots = static_cast<std::int64_t>(slots);
  std::strncpy(header.layer, call.layer, sizeof header.layer - 1);
  return header;
}

SyncCall call_of(const Header& header) {
  return {header.layer, header.direction, header.index, header.channels, 0};
}

std::size_t floats_of(std::int64_t parts, std::int64_t channels) {
  return static_cast<std::size_t>(parts * 2 * channels);
}

/// A rank without images has none.
std::int64_t parts_of(const StatSlot& slot) { return slot.data == nullptr ? 0 : slot.parts; }

}  // namespace

WorldHop::WorldHop(SyncGroup& group, int channel, std::span<const int> ranks)
    : group_(group),
      layout_(group.rank_layout()),
      channel_(channel),
      places_(static_cast<std::size_t>(layout_.processes())),
      out_(places_.size()),
      in_(places_.size()) {
  std::size_t place = 0;
  for (int process = 0; process < layout_.processes(); ++process) {
    Place& own = places_[static_cast<std::size_t>(process)];
    own.begin = place;
    while (place < ranks.size() && layout_.process_of(ranks[place]) == process) ++place;
    own.end = place;
    if (own.begin < own.end && process != layout_.process) peers_.push_back(process);
  }
}

void WorldHop::exchange(const SyncCall& call, std::span<StatSlot> slots) {
  const Place& own = places_[static_cast<std::size_t>(layout_.process)];
  pack(call, slots.subspan(own.begin, own.end - own.begin));
  for (const int peer : peers_) out_[static_cast<std::size_t>(peer)] = packed_.bytes();
  group_.exchange(channel_, peers_, out_, in_);
  for (const int peer : peers_) unpack(call, peer, slots);
}

void WorldHop::pack(const SyncCall& call, std::span<const StatSlot> own) {
  packed_.clear();
  packed_.add(header_of(call, own.size()));
  for (const StatSlot& slot : own) {
    const SlotHeader each{slot.count, parts_of(slot)};
    packed_.add(each);
    packed_.add_all(std::span(slot.data, floats_of(each.parts, call.channels)));
  }
}

// All headers have sizes that leave floats where floats may lie.
void WorldHop::unpack(const SyncCall& call, int process, std::span<StatSlot> slots) const {
  const Place& place = places_[static_cast<std::size_t>(process)];
  ByteReader reader(in_[static_cast<std::size_t>(process)]);
  const Header header = reader.get<Header>();
  const SyncCall theirs = call_of(header);
  if (!same_call(theirs, call_of(header_of(call, 0)))) {
    throw ReplicaError(concat(layout_.describe(process), " is at ", describe(theirs), " while ",
                              layout_.describe(layout_.process), " is at ", describe(call),
                              ": every replica must make the same calls in the same order"));
  }
  for (std::size_t i = place.begin; i < place.end; ++i) {
    const auto each = reader.get<SlotHeader>();
    const auto floats = reader.take(floats_of(each.parts, call.channels) * sizeof(float));
    slots[i] = {each.count, reinterpret_cast<const float*>(floats.data()), each.parts};
  }
  LOCKSTEP_CHECK(reader.left() == 0, layout_.describe(process), " sent ", reader.left(),
                 " bytes more than ", describe(call), " has");
}

}  // namespace lockstep
