#pragma once
// How the names in a file become those of a network: the one may have a wrapper around the other
// ("module.", "backbone."), whose names it puts in front.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

using ShapesByName = std::map<std::string, std::vector<std::int64_t>>;

/// Replaces `strip` at the beginning of the file's names by `add`; other names stay as they are.
struct NameMapping {
  std::string strip, add;

  /// The name in the file of the network's `name`; empty when the file, which has `file`'s names,
  /// lacks it.
  template <typename Named>
  std::string source_of(const std::string& name, const Named& file) const {
    if (name.starts_with(add)) {
      std::string source = strip + name.substr(add.size());
      if (file.contains(source)) return source;
    }
    const bool stays = !strip.empty() && !name.starts_with(strip);
    return stays && file.contains(name) ? name : "";
  }
};

/// The mapping by which most tensors of the network find one in the file that has the same shape;
/// among equals that by which most find one at all; then the one that changes least: none before
/// one prefix before two. Prefixes end in a dot. One that is changed must give names to half of the
/// tensors of the file or of the network, whichever has fewer: two networks that have nothing to do
/// with each other also share some names. Throws DataError naming two that take the tensors from
/// different names and are equal in all of this.
NameMapping find_mapping(const ShapesByName& file, const ShapesByName& network);

/// Throws DataError that says whose the file is and what to do, where its names are those of
/// another program's network that is nearly one of this one's: it would be loaded but for the
/// layers that matter. `missing`: tensors of the network that the file lacks; `unexpected`: the
/// reverse.
void check_convention(const std::vector<std::string>& missing,
                      const std::vector<std::string>& unexpected);

}  // namespace lockstep
