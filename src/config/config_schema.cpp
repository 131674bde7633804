#include "config/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <variant>

#include "config/config_source.h"
#include "config/diagnostics.h"
#include "config/option_values.h"
#include "config/suggest.h"

namespace lockstep {
namespace {

template <typename Variant, std::size_t I>
using Alternative = std::variant_alternative_t<I, Variant>;

/// The names of all alternatives, in their order.
template <typename Variant>
Words names_of_alternatives() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return Words{Alternative<Variant, I>::kName...};
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}

template <typename Variant>
std::string name_of_chosen(const Variant& variant) {
  return std::visit([](const auto& chosen) { return std::string(chosen.kName); }, variant);
}

/// What all visitors do alike: they know the section that they are in.
template <typename Visitor>
class SectionVisitor {
 public:
  template <typename Options, typename... Arguments>
  void section(const char* name, Options& options, Arguments... arguments) {
    const std::string outer = std::exchange(section_, path_of(name) + ".");
    options.visit_options(static_cast<Visitor&>(*this), arguments...);
    section_ = outer;
  }
  template <typename Options, typename... Arguments>
  void sections(const char* name, std::vector<Options>& list, Arguments... arguments) {
    static_cast<Visitor&>(*this).size_list(name, list);
    for (std::size_t i = 0; i < list.size(); ++i) {
      section(section_in_list(name, i, list.size()).c_str(), list[i], arguments...);
    }
  }
  template <typename Options>
  void size_list(const char*, std::vector<Options>&) {}
  template <typename Options>
  void section(const char* name, std::optional<Options>& options) {
    if (Visitor::kAbsentToo && !options) options.emplace();
    if (options) section(name, *options);
  }
  static constexpr bool kAbsentToo = false;  // it visits sections that are not there

 protected:
  std::string path_of(const std::string& key) const { return section_ + key; }

 private:
  std::string section_;
};

/// Collects the keys, in the order of the file.
class KeyLister : public SectionVisitor<KeyLister> {
 public:
  static constexpr bool kAbsentToo = true;

  template <typename Field>
  void operator()(const char* key, Field& field, const char* doc, const Option& option = {}) {
    ConfigKey row{path_of(key),
                  doc,
                  Codec<Field>::expects(option),
                  Codec<Field>::write(field, option),
                  option.counts,
                  Text<Field>};
    if constexpr (std::is_same_v<Field, bool>) {
      row.words = {"true", "false"};
    } else if constexpr (std::is_enum_v<Field>) {
      for (const Named<Field>& named : names_of(field)) {
        row.words.emplace_back(named.name);
        if (*named.former != '\0') row.former_words.emplace_back(named.former);
      }
    } else if (*option.none != '\0') {
      row.words = {option.none};
    }
    add(std::move(row), option.after);
  }

  // From the last to the first, so that the keys of the first come first, and its values are the
  // initial ones.
  template <typename Variant>
  void alternatives(const char* key, const Variant& variant) {
    const Words names = names_of_alternatives<Variant>();
    const std::string choice = names.size() > 1 ? fmt::format("{}", fmt::join(names, ", ")) : "";
    add({path_of(key), choice, "one of " + quoted_list(names), quoted(name_of_chosen(variant)),
         true, false, names},
        "");
    [this]<std::size_t... I>(std::index_sequence<I...>) {
      (visit<Alternative<Variant, sizeof...(I) - 1 - I>>(), ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
    next_ = keys_.size();
  }

  std::vector<ConfigKey> take() { return std::move(keys_); }

 private:
  template <typename Options>
  void visit() {
    Options options;
    alternative_ = Options::kName;
    options.visit_options(*this);
    alternative_.clear();
  }

  std::size_t behind(const std::string& path) const {
    const auto found = std::ranges::find(keys_, path, &ConfigKey::path);
    return found == keys_.end() ? 0 : static_cast<std::size_t>(found - keys_.begin()) + 1;
  }

  // Behind the key before it, or `after`; an alternative's that another has, too, is that one.
  void add(ConfigKey key, const std::string& after) {
    const std::pair own(alternative_, key.initial);
    if (!alternative_.empty()) key.initials = {own};
    if (const std::size_t known = behind(key.path); known != 0) {
      ConfigKey& first = keys_[known - 1];
      first.initial = key.initial;
      first.initials.insert(first.initials.begin(), own);
      next_ = known;
      return;
    }
    const std::size_t at = after.empty() ? next_ : behind(path_of(after));
    keys_.insert(keys_.begin() + static_cast<std::ptrdiff_t>(at), std::move(key));
    next_ = std::max(next_, at) + 1;
  }

  std::vector<ConfigKey> keys_;
  std::size_t next_ = 0;     // where the next key goes
  std::string alternative_;  // whose keys are visited; empty: of none
};

/// Stores what the source has.
class OptionReader : public SectionVisitor<OptionReader> {
 public:
  OptionReader(const ConfigSource& source, Diagnostics& diagnostics)
      : source_(source), diagnostics_(diagnostics) {}

  template <typename Field>
  void operator()(const char* key, Field& field, const char*, const Option& option = {}) {
    const std::string path = path_of(key);
    if (*option.akin != '\0') akin_[path_of(option.akin)] = path;
    const toml::node* node = source_.find(path);
    if (node == nullptr || !seen_.insert(path).second) return;
    try {
      if (!Codec<Field>::parse(*node, field, option)) {
        error(path, expected(Codec<Field>::expects(option), *node) + nearest<Field>(*node));
      }
    } catch (const ConfigError& wrong) {
      error(path, wrong.what());
    }
    if (!elsewhere_.empty()) misplace(path);
  }

  template <typename Options>
  void size_list(const char* name, std::vector<Options>& list) {
    list.resize(std::max<std::size_t>(1, source_.list_size(name)));
  }

  // A key that an alternative has and the chosen one has not is still read, for its own errors.
  template <typename Variant>
  void alternatives(const char* key, Variant& variant) {
    choose(path_of(key), variant);
    std::visit([this](auto& chosen) { chosen.visit_options(*this); }, variant);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (visit_other<Alternative<Variant, I>>(path_of(key), name_of_chosen(variant)), ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
  }

  ReadOptions take() { return std::move(result_); }

 private:
  void error(const std::string& path, const std::string& wrong) {
    diagnostics_.error(source_.span(path), path + ": " + wrong);
    result_.good = false;
  }

  static std::string did_you_mean(const toml::node& node, const Words& names) {
    const auto nearest = nearest_word(node.value_or(std::string()), names);
    return node.is_string() && nearest ? fmt::format("; did you mean {}?", quoted(*nearest)) : "";
  }
  template <typename Field>
  static std::string nearest(const toml::node& node) {
    if constexpr (std::is_enum_v<Field>) return did_you_mean(node, Codec<Field>::words());
    return "";
  }

  template <typename Variant>
  void choose(const std::string& path, Variant& variant) {
    const toml::node* node = source_.find(path);
    if (node == nullptr) return;
    const std::string name = node->value_or(std::string());
    const bool known = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return ((name == Alternative<Variant, I>::kName && (variant.template emplace<I>(), true)) ||
              ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
    if (known) return;
    const Words names = names_of_alternatives<Variant>();
    error(path, expected("one of " + quoted_list(names), *node) + did_you_mean(*node, names));
  }

  template <typename Options>
  void visit_other(const std::string& path, const std::string& chosen) {
    if (Options::kName == chosen) return;
    elsewhere_ = fmt::format("{} = \"{}\", but it is \"{}\"", path, Options::kName, chosen);
    Options unused;
    unused.visit_options(*this);
    elsewhere_.clear();
  }

  void misplace(const std::string& path) {
    const auto akin = akin_.find(path);
    result_.misplaced.push_back(
        {path, fmt::format("{} is a number of {}", path, elsewhere_),
         akin == akin_.end()
             ? "leave it out"
             : fmt::format("leave it out; {} is what comes nearest", akin->second)});
  }

  const ConfigSource& source_;
  Diagnostics& diagnostics_;
  ReadOptions result_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> akin_;  // what comes nearest to a key
  std::string elsewhere_;  // whose keys are visited, if not those of the chosen alternative
};

struct WrittenValue {
  std::string text;
  std::string hashed;  // a value that was renamed keeps its name here
  std::string former_default;
  bool counts = true;
};

/// Collects the values that are written; with `all` also those that say nothing beside the others.
class OptionWriter : public SectionVisitor<OptionWriter> {
 public:
  explicit OptionWriter(bool all) : all_(all) {}

  template <typename Field>
  void operator()(const char* key, Field& field, const char*, const Option& option = {}) {
    if (!option.written && !all_) return;
    const std::string text = Codec<Field>::write(field, option);
    if (text.empty()) return;
    values_[path_of(key)] = {text, hashed(field, text), option.former_default, option.counts};
  }

  template <typename Variant>
  void alternatives(const char* key, Variant& variant) {
    const std::string name = quoted(name_of_chosen(variant));
    values_[path_of(key)] = {name, name, "", true};
    std::visit([this](auto& chosen) { chosen.visit_options(*this); }, variant);
  }

  const std::map<std::string, WrittenValue>& values() const { return values_; }

 private:
  template <typename Field>
  static std::string hashed(const Field& field, const std::string& text) {
    if constexpr (std::is_enum_v<Field>) {
      for (const Named<Field>& named : names_of(field)) {
        if (named.value == field && *named.former != '\0') return quoted(named.former);
      }
    }
    return text;
  }

  bool all_;
  std::map<std::string, WrittenValue> values_;
};

struct PlacedKey {
  const ConfigKey* key;
  std::string path;  // with its place in a list
};

/// All keys in the order of the file, those of a list element by element.
std::vector<PlacedKey> placed_keys(const Config& config) {
  const auto size_of = [&](const std::string& section) {
    return section == "loss" ? config.losses.size() : 1;
  };
  std::vector<PlacedKey> placed;
  const std::vector<ConfigKey>& keys = config_keys();
  for (auto first = keys.begin(); first != keys.end();) {
    const std::string section = section_of(first->path);
    const auto last = std::find_if(
        first, keys.end(), [&](const ConfigKey& key) { return section_of(key.path) != section; });
    for (std::size_t i = 0; i < size_of(section); ++i) {
      const std::string place = section_in_list(section, i, size_of(section));
      for (auto key = first; key != last; ++key) {
        placed.push_back({&*key, place + "." + name_of(key->path)});
      }
    }
    first = last;
  }
  return placed;
}

std::map<std::string, WrittenValue> written_values(Config config, bool all = false) {
  OptionWriter writer(all);
  config.visit_options(writer);
  return writer.values();
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = [] {
    Config config;
    KeyLister lister;
    config.visit_options(lister);
    return lister.take();
  }();
  return keys;
}

std::string without_index(const std::string& path) {
  const std::size_t begin = path.find('['), end = path.find(']');
  const bool indexed = begin != std::string::npos && end != std::string::npos && end > begin + 1;
  if (!indexed || path.find_first_not_of("0123456789", begin + 1) != end) return path;
  return path.substr(0, begin) + path.substr(end + 1);
}

std::string section_in_list(const std::string& name, std::size_t index, std::size_t size) {
  return size == 1 ? name : fmt::format("{}[{}]", name, index);
}

std::string section_header(const std::string& section) {
  const std::string name = without_index(section);
  return name == section ? fmt::format("[{}]", name) : fmt::format("[[{}]]", name);
}

std::string section_of(const std::string& path) { return path.substr(0, path.rfind('.')); }

std::string name_of(const std::string& path) { return path.substr(path.rfind('.') + 1); }

ReadOptions read_options(const ConfigSource& source, Config& config, Diagnostics& diagnostics) {
  OptionReader reader(source, diagnostics);
  config.visit_options(reader);
  return reader.take();
}

std::vector<ConfigValue> config_values(const Config& config, bool all) {
  const std::map<std::string, WrittenValue> written = written_values(config, all);
  std::vector<ConfigValue> values;
  for (const auto& [key, path] : placed_keys(config)) {
    const auto found = written.find(path);
    if (found == written.end()) continue;
    values.push_back({path, found->second.text, key->doc, "", found->second.counts});
  }
  return values;
}

std::string hashed_text(const Config& config) {
  static const std::map<std::string, WrittenValue> defaults = written_values({});
  const std::map<std::string, WrittenValue> values = written_values(config);
  const auto find = [](const auto& of, const std::string& path) {
    const auto found = of.find(path);
    return found == of.end() ? WrittenValue() : found->second;
  };
  // What is left out; a key with another default than before says so when it has the new one.
  const auto implied = [&](const std::string& path) {
    const WrittenValue value = find(defaults, path);
    return value.former_default.empty() ? value.hashed : value.former_default;
  };
  std::string text;
  for (const auto& [key, path] : placed_keys(config)) {
    const WrittenValue value = find(values, path);
    const bool placed = path != key->path;  // one of several: that it is there counts
    const bool counts = key->counts && value.counts;
    if (!counts || (!placed && value.hashed == implied(key->path))) continue;
    text += fmt::format("{}={}\n", path, value.hashed);
  }
  return text;
}

}  // namespace lockstep
