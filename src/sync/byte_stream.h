#pragma once
// Values as the bytes that the processes of a world say to each other; all of them run the same
// program.

#include <cstring>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/sync/world.h"

namespace lockstep {

/// A struct whose member fields() ties what of it other processes hear.
template <typename T>
concept HasFields = requires(T& value) {
  value.fields();
};

class ByteWriter {
 public:
  template <typename T>
  void add(const T& value) {
    add_all(std::span<const T>(&value, 1));
  }
  /// Without their number, which the reader knows.
  template <typename T>
  void add_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  template <typename T>
  void add_all(const std::vector<T>& values) {
    add_all(std::span<const T>(values));
  }
  /// Of anything: a struct's fields, a text's or a vector's elements behind their number.
  template <typename T>
  void put(T& value) {
    if constexpr (HasFields<T>) {
      std::apply([this](auto&... field) { (put(field), ...); }, value.fields());
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      add(value);
    } else {
      add(value.size());
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
        add_all(std::span<const typename T::value_type>(value));
      } else {
        for (auto& element : value) put(element);
      }
    }
  }
  const Bytes& bytes() const { return bytes_; }
  /// The memory stays.
  void clear() { bytes_.clear(); }

 private:
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <typename T>
  void get_all(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto bytes = take(values.size_bytes());
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  template <typename T>
  void get_all(std::vector<T>& values) {
    get_all(std::span<T>(values));
  }
  template <typename T>
  T get() {
    T value;
    get_all(std::span<T>(&value, 1));
    return value;
  }
  /// Where they lie.
  std::span<const std::byte> take(std::size_t bytes) {
    LOCKSTEP_CHECK(bytes <= left_.size(), "a message of another process is too short");
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  /// Bytes that nobody has asked for yet.
  std::size_t left() const { return left_.size(); }
  /// What ByteWriter::put has written of a value.
  template <typename T>
  void read(T& value) {
    if constexpr (HasFields<T>) {
      std::apply([this](auto&... field) { (read(field), ...); }, value.fields());
    } else if constexpr (std::is_trivially_copyable_v<T>) {
      value = get<T>();
    } else {
      value.resize(get<std::size_t>());
      if constexpr (std::is_trivially_copyable_v<typename T::value_type>) {
        get_all(std::span<typename T::value_type>(value));
      } else {
        for (auto& element : value) read(element);
      }
    }
  }

 private:
  std::span<const std::byte> left_;
};

/// What this process tells the others and hears of them, in memory that is used again.
class PeerExchange {
 public:
  /// write(writer) here is read(process, reader) in every other process, in the order of the
  /// processes; one without others calls neither. All processes make the same calls. `group`: a
  /// SyncGroup or a DataParallel.
  template <typename Group, typename Write, typename Read>
  void operator()(Group& group, const Write& write, const Read& read) {
    const RankLayout& layout = group.rank_layout();
    if (layout.processes() == 1) return;
    own_.clear();
    write(own_);
    group.all_gather(own_.bytes(), all_);
    for (int process = 0; process < layout.processes(); ++process) {
      if (process == layout.process) continue;
      ByteReader reader(all_[static_cast<std::size_t>(process)]);
      read(process, reader);
    }
  }

 private:
  ByteWriter own_;
  std::vector<Bytes> all_;  // [process]
};

/// by_rank: an element per rank, of which those of this process's ranks are there. Fills in the
/// others'. As PeerExchange, of which one that is kept allocates nothing the next time.
template <typename Group, typename Value>
void share_by_rank(Group& group, std::vector<Value>& by_rank, PeerExchange& exchange) {
  const RankLayout& layout = group.rank_layout();
  const auto ranks_of = [&](int process) {
    const auto of = static_cast<std::size_t>(process);
    const auto first = static_cast<std::size_t>(layout.first[of]);
    return std::span(by_rank).subspan(first,
                                      static_cast<std::size_t>(layout.first[of + 1]) - first);
  };
  exchange(
      group,
      [&](ByteWriter& writer) {
        for (Value& own : ranks_of(layout.process)) writer.put(own);
      },
      [&](int process, ByteReader& reader) {
        for (Value& theirs : ranks_of(process)) reader.read(theirs);
      });
}

template <typename Group, typename Value>
void share_by_rank(Group& group, std::vector<Value>& by_rank) {
  PeerExchange exchange;
  share_by_rank(group, by_rank, exchange);
}

}  // namespace lockstep
