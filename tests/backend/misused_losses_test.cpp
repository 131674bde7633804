// The same of losses and of the optimizer.

#include "backend/formulas.h"
#include "backend/operand_misuse.h"

namespace lockstep::test {
namespace {

void misuse_mean_losses(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  const Tensor logits = memory.tensor(kImages), other = memory.tensor(kPooled);
  const Tensor labels = memory.tensor(kLabels, DType::kUInt16);
  CrossEntropy entropy;
  entropy.logits = logits;
  entropy.labels = labels;
  entropy.grad_logits = memory.tensor(kImages);
  entropy.loss = memory.of<double>(1);
  check_misuse("cross_entropy", entropy, [&](const CrossEntropy& a) { losses.cross_entropy(a); },
               {null("logits", &CrossEntropy::logits), null("labels", &CrossEntropy::labels),
                null("loss", &CrossEntropy::loss),
                narrowed("grad_logits", &CrossEntropy::grad_logits, &CrossEntropy::logits),
                size("rows_per_weight", &CrossEntropy::rows_per_weight, std::int64_t{0}),
                size("rows_per_weight", &CrossEntropy::rows_per_weight, std::int64_t{-1})});
  using Elements = ElementLosses;
  const FormulaOf<AbsoluteError> formula{AbsoluteError{}};
  Elements elements;
  elements.formula = &formula;
  elements.output = logits;
  elements.target = memory.tensor(kImages);
  elements.grad_output = memory.tensor(kImages);
  elements.loss = entropy.loss;
  check_misuse("element_losses", elements, [&](const Elements& a) { losses.element_losses(a); },
               {null("output", &Elements::output),
                null("target", &Elements::target),
                null("loss", &Elements::loss),
                narrowed("grad_output", &Elements::grad_output, &Elements::output),
                {"formula", [](Elements& a) { a.formula = nullptr; }}});
  entropy.labels = other;
  elements.target = other;
  CHECK_THROWS_AS(losses.cross_entropy(entropy), Error);
  CHECK_THROWS_AS(losses.element_losses(elements), Error);

  auto* const matrix = memory.of<std::int64_t>(kChannels * kChannels);
  check_nulls("confusion_matrix", {{"logits", logits}, {"labels", labels}},
              [&](const auto& t) { losses.confusion_matrix(t[0], t[1], matrix); });
  CHECK_THROWS_AS(losses.confusion_matrix(logits, labels, nullptr), Error);
  CHECK_THROWS_AS(losses.confusion_matrix(logits, other, matrix), Error);
}

void misuse_ohem(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  auto* const state = memory.of<OhemState>(1);
  using Probabilities = LabelProbabilities;
  Probabilities probabilities;
  probabilities.logits = memory.tensor(kImages);
  probabilities.labels = memory.tensor(kLabels, DType::kUInt16);
  probabilities.probabilities = memory.floats(kRows);
  check_misuse("label_probabilities", probabilities,
               [&](const Probabilities& a) { losses.label_probabilities(a); },
               {null("logits", &Probabilities::logits), null("labels", &Probabilities::labels),
                null("probabilities", &Probabilities::probabilities)});
  float* const slot = memory.floats(2 * kOhemCounts);
  OhemCount count{0, probabilities.probabilities, kRows, 2, state, slot};
  check_misuse("ohem_count", count, [&](const OhemCount& a) { losses.ohem_count(a); },
               {null("probabilities", &OhemCount::probabilities),
                null("state", &OhemCount::state),
                null("slot", &OhemCount::slot),
                size("rows", &OhemCount::rows, std::int64_t{-1}),
                size("samples", &OhemCount::samples, std::int64_t{-1}),
                {"got 3", [](OhemCount& a) { a.round = kOhemRounds; }},
                {"got -1", [](OhemCount& a) { a.round = -1; }}});
  const std::array<StatSlot, 1> counts{StatSlot{2, slot}};
  OhemNarrow narrow;
  narrow.counts = counts;
  narrow.state = state;
  check_misuse("ohem_narrow", narrow, [&](const OhemNarrow& a) { losses.ohem_narrow(a); },
               {null("state", &OhemNarrow::state),
                {"'slot'", [](OhemNarrow& a) { a.counts = kNullSlots; }},
                size("min_kept", &OhemNarrow::min_kept, std::int64_t{-1}),
                {"got 3", [](OhemNarrow& a) { a.round = kOhemRounds; }}});
  OhemChoice choice;
  choice.labels = probabilities.labels;
  choice.classes = kChannels;
  choice.state = state;
  choice.rows = probabilities.probabilities;
  choice.slots = memory.floats(2 * 4 * kChannels);
  check_misuse("ohem_choose", choice, [&](const OhemChoice& a) { losses.ohem_choose(a); },
               {null("labels", &OhemChoice::labels), null("state", &OhemChoice::state),
                null("rows", &OhemChoice::rows), null("slots", &OhemChoice::slots),
                size("classes", &OhemChoice::classes, std::int64_t{0}),
                size("classes", &OhemChoice::classes, std::int64_t{4097})});
  const std::array<StatSlot, 1> weights{StatSlot{2, choice.slots}};
  OhemShare share;
  share.weights = weights;
  share.classes = kChannels;
  share.state = state;
  check_misuse("ohem_share", share, [&](const OhemShare& a) { losses.ohem_share(a); },
               {null("state", &OhemShare::state),
                {"'slot'", [](OhemShare& a) { a.weights = kNullSlots; }},
                size("classes", &OhemShare::classes, std::int64_t{-1})});
}

void misuse_dice(Backend& backend, Memory& memory) {
  LossOperations& losses = backend.losses();
  constexpr std::int64_t kElements = 3 * kChannels + 1;
  DiceSums sums;
  sums.logits = memory.tensor(kImages);
  sums.labels = memory.tensor(kLabels, DType::kUInt16);
  sums.slots = memory.floats(2 * 2 * kElements);
  check_misuse("dice_sums", sums, [&](const DiceSums& a) { losses.dice_sums(a); },
               {null("logits", &DiceSums::logits), null("labels", &DiceSums::labels),
                null("slots", &DiceSums::slots)});
  DiceLosses dice;
  dice.logits = sums.logits;
  dice.labels = sums.labels;
  dice.sums = memory.tensor({2, kElements});
  dice.grad_logits = memory.tensor(kImages);
  dice.loss = memory.of<double>(1);
  check_misuse("dice_losses", dice, [&](const DiceLosses& a) { losses.dice_losses(a); },
               {null("logits", &DiceLosses::logits),
                null("labels", &DiceLosses::labels),
                null("sums", &DiceLosses::sums),
                null("loss", &DiceLosses::loss),
                narrowed("grad_logits", &DiceLosses::grad_logits, &DiceLosses::logits),
                {"for all or each of 2 images",
                 [](DiceLosses& a) {
                   a.sums.shape = {2, 3};
                 }},
                {"for all or each of 2 images", [](DiceLosses& a) {
                   a.sums.shape = {3, kElements};
                 }}});
}

void misuse_optimizer(Backend& backend, Memory& memory) {
  OptimizerOperations& ops = backend.optimizer();
  constexpr std::int64_t kCount = 8;
  float* const memory_of_rank = memory.floats(kCount);
  const std::array<const float*, 1> grads{memory.floats(kCount)};
  const std::array<float*, 1> weights{memory_of_rank};
  const std::array<const double*, 1> losses{memory.of<double>(1)};
  const std::array<ParameterRange, 1> ranges{ParameterRange{0, kCount}};
  static constexpr std::array<ParameterRange, 1> kNegative{ParameterRange{-4, 4}};
  static constexpr std::array<ParameterRange, 1> kBackwards{ParameterRange{4, 2}};
  static constexpr std::array<ParameterRange, 2> kOverlapping{ParameterRange{0, 4},
                                                              ParameterRange{2, 8}};
  double* const guard = memory.of<double>(1);

  GradientCheck gradients{grads[0], kCount, losses[0], guard};
  check_misuse("check_gradients", gradients,
               [&](const GradientCheck& a) { ops.check_gradients(a); },
               {null("grads", &GradientCheck::grads), null("loss", &GradientCheck::loss),
                null("guard", &GradientCheck::guard),
                size("elements", &GradientCheck::elements, std::int64_t{-1})});

  using Shard = OptimizerShard;
  Shard shard{.grads = grads, .weights = weights, .ranges = ranges, .losses = losses};
  shard.optimizer = AdamW{};
  shard.state = {memory.floats(kCount), memory.floats(kCount)};
  const std::vector<Misuse<Shard>> of_both{
      {"'grads[0]'", [](Shard& a) { a.grads = kNullGrads; }},
      {"'weights[0]'", [](Shard& a) { a.weights = kNullWeights; }},
      {"got 0", [](Shard& a) { a.grads = {}; }},
      {"got 1 and 0", [](Shard& a) { a.weights = {}; }},
      {"[-4, 4)", [](Shard& a) { a.ranges = kNegative; }},
      {"[4, 2)", [](Shard& a) { a.ranges = kBackwards; }},
      {"[2, 8)", [](Shard& a) { a.ranges = kOverlapping; }}};
  std::vector<Misuse<Shard>> of_update = of_both;
  of_update.push_back({"'losses[0]'", [](Shard& a) { a.losses = kNullDoubles; }});
  of_update.push_back({"'state[0]'", [](Shard& a) { a.state[0] = nullptr; }});
  of_update.push_back({"'state[1]'", [](Shard& a) { a.state[1] = nullptr; }});
  double* const squares = memory.of<double>(1);
  check_misuse(
      "optimizer_update", shard, [&](const Shard& a) { ops.optimizer_update(a); }, of_update);
  check_misuse(
      "gradient_squares", shard, [&](const Shard& a) { ops.gradient_squares(a, squares); },
      of_both);
  CHECK_THROWS_AS(ops.gradient_squares(shard, nullptr), Error);

  const std::array<GradientSquares, 1> of_rank{GradientSquares{squares, 0, 1}};
  static constexpr std::array<GradientSquares, 1> kNone{GradientSquares{nullptr, 0, -1}};
  ClipFactor clip{of_rank, 1, memory.floats(1)};
  check_misuse(
      "clip_factor", clip, [&](const ClipFactor& a) { ops.clip_factor(a); },
      {null("factor", &ClipFactor::factor), {"'count'", [](ClipFactor& a) { a.squares = kNone; }}});
  using Average = WeightAverage;
  Average average{memory_of_rank, memory.floats(kCount), kCount};
  average.losses = losses;
  check_misuse("average_weights", average, [&](const Average& a) { ops.average_weights(a); },
               {null("weights", &Average::weights),
                null("average", &Average::average),
                size("elements", &Average::elements, std::int64_t{-1}),
                {"'losses[0]'", [](Average& a) { a.losses = kNullDoubles; }}});
  const std::array<const double*, 1> guards{guard};
  LossScaleUpdate scale{guards, memory.of<LossScaleState>(1)};
  check_misuse("update_loss_scale", scale,
               [&](const LossScaleUpdate& a) { ops.update_loss_scale(a); },
               {null("state", &LossScaleUpdate::state),
                size("growth_interval", &LossScaleUpdate::growth_interval, std::int64_t{0}),
                {"'guards[0]'", [](LossScaleUpdate& a) { a.guards = kNullDoubles; }}});
}

}  // namespace

TEST_CASE("misused operands of losses and the optimizer are errors that name them") {
  check_everywhere({misuse_mean_losses, misuse_ohem, misuse_dice, misuse_optimizer});
}

}  // namespace lockstep::test
