#include "options.h"

#include <type_traits>
#include <utility>
#include <variant>

namespace lockstep::python {
namespace {

/// Calls `make(kind)` for the type of `table`'s key "type", one of Kinds by their kName.
template <typename... Kinds, typename Make>
void with_kind(Table& table, Make make) {
  std::string type = std::get<0>(std::tuple<Kinds...>()).kName;
  table("type", type);
  std::string names;
  bool found = false;
  const auto offer = [&](auto kind) {
    names += concat(names.empty() ? "'" : ", '", kind.kName, "'");
    if (found || type != kind.kName) return;
    kind.visit_options(table);
    make(std::move(kind));
    found = true;
  };
  (offer(Kinds{}), ...);
  if (!found) table.fail("type", "one of " + names, nb::cast(type));
  table.finish();
}

template <typename... Kinds>
Optimizer optimizer_among(Table& table, std::type_identity<std::variant<Kinds...>>) {
  Optimizer chosen;
  with_kind<Kinds...>(table, [&](auto kind) { chosen = kind; });
  return chosen;
}

NamedLoss loss_of(nb::handle given, int ignore_index) {
  Table table("losses", given, "type");
  NamedLoss named{"out", CrossEntropyLoss{}};
  table("output", named.output);
  float weight = 1;
  table("weight", weight, "", {.in = limits::kPositive});
  with_kind<CrossEntropyLoss, DiceLoss, FocalLoss, OhemCrossEntropyLoss>(table, [&](auto loss) {
    loss.weight = weight;
    loss.ignore_index = ignore_index;
    named.loss = std::move(loss);
  });
  return named;
}

}  // namespace

std::string shown(nb::handle value) { return nb::cast<std::string>(nb::repr(value)); }

Table::Table(std::string name, nb::handle given, const char* key) : name_(std::move(name)) {
  if (given.is_none()) return;
  if (nb::isinstance<nb::str>(given)) {
    values_[key] = given;
  } else if (nb::isinstance<nb::dict>(given)) {
    values_ = nb::borrow<nb::dict>(given);
  } else {
    throw ConfigError(concat(name_, ": expected a word for its ", key,
                             " or a dictionary of its options, got ", shown(given)));
  }
}

void Table::finish() const {
  for (const nb::handle key : values_.keys()) {
    std::string text;
    if (nb::try_cast(key, text) && taken_.contains(text)) continue;
    throw ConfigError(
        concat(name_, ": there is no option ", shown(key), " here; there are ", known_));
  }
}

void Table::fail(const std::string& key, const std::string& expected, nb::handle value) const {
  throw ConfigError(concat(name_, ".", key, ": expected ", expected, ", got ", shown(value)));
}

std::string Table::number_of(const char* kind, const Option& option) {
  if (option.among.empty()) return describe(option.in, kind);
  std::string text = concat(kind, " among");
  for (const int value : option.among) text += concat(" ", value);
  return text;
}

Architecture architecture_of(const std::string& arch, std::int64_t num_classes, nb::handle model) {
  Table table("model", model, "arch");
  ModelOptions options;
  options.visit_options(table);
  table.finish();
  options.arch = arch;
  options.num_classes = num_classes;
  if (num_classes < 1) {
    throw ConfigError(concat("num_classes: expected an integer >= 1, got ", num_classes));
  }
  if (!options.backbone_weights.empty()) {
    throw ConfigError(
        "model.backbone_weights is for the program; here: "
        "net.load_state_dict(load_weights(file), strict=False)");
  }
  Architecture architecture = find_architecture(builtin_models(), options);
  for (const std::string& ignored : architecture.ignored_options) {
    if (!table.contains(ignored.c_str())) continue;
    throw ConfigError(concat("model.", ignored, " means nothing to ", arch, "; leave it out"));
  }
  return architecture;
}

NormLayer norm_of(nb::handle bn, int ranks) {
  Table table("bn", bn, "mode");
  BatchNormOptions options;
  int group = 0;
  options.visit_options(table);
  table("sync_layers", options.sync_layers);
  table("sync_group", group, "", {.in = limits::kNotNegative});
  table.finish();
  if (group > 0 && options.synchronizes()) {
    options.process_groups = contiguous_groups(ranks, group);
  }
  return options;
}

Optimizer optimizer_of(nb::handle optimizer) {
  Table table("optimizer", optimizer, "type");
  return optimizer_among(table, std::type_identity<Optimizer>());
}

std::vector<NamedLoss> losses_of(nb::handle losses, int ignore_index) {
  if (!std::in_range<Label>(ignore_index)) {
    throw ConfigError(concat("ignore_index = ", ignore_index,
                             ": expected 0..65535, as labels are "
                             "kept; write 65535 here and in the labels, say"));
  }
  std::vector<NamedLoss> all;
  if (nb::isinstance<nb::list>(losses) || nb::isinstance<nb::tuple>(losses)) {
    for (const nb::handle loss : losses) all.push_back(loss_of(loss, ignore_index));
  } else {
    all.push_back(loss_of(losses, ignore_index));
  }
  return all;
}

}  // namespace lockstep::python
