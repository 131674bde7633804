// Arguments of the functions of public headers, wrong in every way that its type allows:
// null, negative, not a number, of another network, too large. Each is an exception, whose text
// says something. Sanitizers watch in the preset asan. DataParallel's own are in misuse_test.cpp,
// null values in a builder in tests/nn/builder_test.cpp.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "step/misuse_table.h"
#include "support/with_timeout.h"

namespace lockstep::test {
namespace {

/// A network that is being declared.
struct Declared {
  std::unique_ptr<Backend> backend = cpu(1);
  ParameterStore store;
  NetworkBuilder net{*backend, store};
  Value* x = net.input({2, 8, 8, 4});
  Value* flat = net.reshape(x, {2, 256});
};

/// What is wrong in the declaration of a layer.
Misuse declaration(const char* what, const std::function<void(NetworkBuilder&, Value*)>& declare) {
  return {what, [declare] {
            Declared declared;
            declare(declared.net, declared.x);
          }};
}

/// A loss against an output of 3 classes.
Misuse loss_mistake(const char* what, const Loss& loss) {
  return {what, [loss] {
            Built built;
            loss.check();
            loss.make_node({"out", *built.network, 0});
          }};
}

}  // namespace

TEST_CASE("misuse of shapes, tensors, devices and schedules throws") {
  float memory[16] = {};
  const Tensor tensor(memory, {2, 2, 4});
  check_throw({
      {"a negative extent",
       [] {
         Shape{2, -1};
       }},
      {"too many extents", [] { Shape{1, 1, 1, 1, 1, 1}; }},
      {"a negative batch",
       [] {
         static_cast<void>(Shape{2, 3}.with_batch(-1));
       }},
      {"the batch of no shape", [] { static_cast<void>(Shape{}.with_batch(1)); }},
      {"negative channels",
       [] {
         static_cast<void>(Shape{2, 3}.with_channels(-3));
       }},
      {"the channels of no shape", [] { static_cast<void>(Shape{}.with_channels(1)); }},
      {"channels from -1", [&] { static_cast<void>(tensor.channel_range(-1, 2)); }},
      {"too many channels", [&] { static_cast<void>(tensor.channel_range(3, 2)); }},
      {"a huge number of channels", [&] { static_cast<void>(tensor.channel_range(1, kHuge)); }},
      {"samples from -1", [&] { static_cast<void>(tensor.sample_range(-1, 1)); }},
      {"too many samples", [&] { static_cast<void>(tensor.sample_range(1, 2)); }},
      {"a huge number of samples", [&] { static_cast<void>(tensor.sample_range(1, kHuge)); }},
      {"floats of bytes",
       [&] {
         Tensor(memory, {1, 4}, DType::kUInt8).floats();
       }},
      {"bytes of floats", [&] { tensor.bytes(); }},
      {"labels of floats", [&] { tensor.labels(); }},
      {"no devices", [] { parse_devices("", 1); }},
      {"devices of no kind", [] { parse_devices("tpu:1", 1); }},
      {"cpu:0", [] { parse_devices("cpu:0", 1); }},
      {"cpu:-2", [] { parse_devices("cpu:-2", 1); }},
      {"too many devices", [] { parse_devices("cpu:99999999999999999999", 1); }},
      {"a GPU of none", [] { parse_devices("cuda:0", 0); }},
      {"all GPUs of a negative number", [] { parse_devices("cuda:all", -3); }},
      {"a backend without threads", [] { make_backend(Device{}, 0); }},
      {"a backend of a GPU that is not there",
       [] {
         make_backend({DeviceKind::kCuda, 99, 0}, 1);
       }},
      {"replicas without threads", [] { static_cast<void>(threads_per_replica(0)); }},
      {"chunks of a negative batch", [] { chunk_sizes(-1, 2); }},
      {"no chunks", [] { chunk_sizes(4, 0); }},
      {"a negative step of a schedule", [] { learning_rate({}, 0.1, -1, 10); }},
      {"a step behind a schedule", [] { learning_rate({}, 0.1, 10, 10); }},
      {"a schedule of no steps", [] { learning_rate({}, 0.1, 0, 0); }},
      {"groups of a negative width", [] { contiguous_groups(4, -1); }},
      {"groups that do not divide", [] { contiguous_groups(4, 3); }},
      {"groups of no ranks", [] { contiguous_groups(0, 0); }},
      {"more elements than can be counted",
       [] {
         Shape{kHuge, 2};
       }},
      {"a batch of more than can be counted",
       [] {
         static_cast<void>(Shape{2, 3}.with_batch(kHuge));
       }},
      {"a partition with a rank too many",
       [] {
         ascending({{0, 1}, {2}}, 2);
       }},
      {"a partition without a rank", [] { ascending({{0}}, 2); }},
      {"a partition with a rank twice",
       [] {
         ascending({{0, 1}, {1}}, 2);
       }},
      {"a partition with a negative rank",
       [] {
         ascending({{0, -1}}, 2);
       }},
      {"a partition with an empty set",
       [] {
         ascending({{0, 1}, {}}, 2);
       }},
      {"a colour of no kind", [] { parse_color("red"); }},
      {"an optimizer out of range", [] { check_optimizer(Sgd{.lr = kNaN}, {}); }},
      {"a group out of range",
       [] {
         const std::vector<ParameterGroup> groups{{.prefix = "a", .lr_mult = -1}};
         check_optimizer(Sgd{}, groups);
       }},
      {"a bound that is no number", [] { check_clipping({.norm = kNaN}); }},
      {"a negative bound", [] { check_clipping({.value = -1}); }},
  });
}

TEST_CASE("misuse of a builder's numbers throws") {
  const ConvGeometry good{.in_channels = 4, .out_channels = 2};
  const auto conv = [](const Conv2dOptions& options) {
    return [options](NetworkBuilder& net, Value* x) { net.conv2d(x, "c", options); };
  };
  const auto transposed = [](const ConvTranspose2dOptions& options) {
    return [options](NetworkBuilder& net, Value* x) { net.conv_transpose2d(x, "c", options); };
  };
  const auto pool = [](const PoolGeometry& geometry) {
    return [geometry](NetworkBuilder& net, Value* x) { net.max_pool2d(x, geometry); };
  };
  check_throw({
      {"an input without extents",
       [] {
         Declared declared;
         NetworkBuilder(*declared.backend, declared.store).input({});
       }},
      {"an input without pixels",
       [] {
         Declared declared;
         NetworkBuilder(*declared.backend, declared.store).input({2, 0, 8, 4});
       }},
      declaration("a second input",
                  [](auto& net, Value*) {
                    net.input({2, 8, 8, 4});
                  }),
      declaration("a value without extents", [](auto& net, Value*) { net.value("v", {}); }),
      declaration("a value without elements",
                  [](auto& net, Value*) {
                    net.value("v", {2, 0});
                  }),
      declaration("a parameter without a name",
                  [](auto& net, Value*) { net.parameter("", {2}, ParameterKind::kWeight); }),
      declaration("huge output channels", conv({.out_channels = kHuge})),
      declaration("a huge stride", conv({.out_channels = 2, .stride = kHuge})),
      declaration("a huge dilation", conv({.out_channels = 2, .kernel = 3, .dilation = kHuge})),
      declaration("a huge padding", conv({.out_channels = 2, .padding = kHuge})),
      declaration("a huge stride of a transposed convolution",
                  transposed({.out_channels = 2, .stride = kHuge})),
      declaration("huge features", [](auto& net, Value* x) { net.linear(x, "l", kHuge); }),
      declaration("upsampled to what cannot be counted",
                  [](auto& net, Value* x) { net.upsample_bilinear(x, kHuge, kHuge, false); }),
      declaration("no output channels", conv({})),
      declaration("negative output channels", conv({.out_channels = -2})),
      declaration("no kernel", conv({.out_channels = 2, .kernel = 0})),
      declaration("a negative kernel", conv({.out_channels = 2, .kernel = -3})),
      declaration("a kernel that is too large", conv({.out_channels = 2, .kernel = 9})),
      declaration("a huge kernel", conv({.out_channels = 2, .kernel = kHuge})),
      declaration("no stride", conv({.out_channels = 2, .stride = 0})),
      declaration("a negative stride", conv({.out_channels = 2, .stride = -1})),
      declaration("a negative padding", conv({.out_channels = 2, .padding = -1})),
      declaration("no dilation", conv({.out_channels = 2, .dilation = 0})),
      declaration("no groups", conv({.out_channels = 2, .groups = 0})),
      declaration("groups that do not divide", conv({.out_channels = 2, .groups = 3})),
      declaration("a geometry of other channels",
                  [&](auto& net, Value* x) {
                    ConvGeometry other = good;
                    other.in_channels = 5;
                    net.conv2d(x, "c", other, false);
                  }),
      declaration("a convolution of rows",
                  [](auto& net, Value* x) {
                    net.conv2d(net.reshape(x, {2, 256}), "c", {.out_channels = 2});
                  }),
      declaration("a transposed convolution without channels", transposed({})),
      declaration("a transposed convolution without stride",
                  transposed({.out_channels = 2, .stride = 0})),
      declaration("an output padding of the stride",
                  transposed({.out_channels = 2, .output_padding = 2})),
      declaration("a negative output padding",
                  transposed({.out_channels = 2, .output_padding = -1})),
      declaration("a padding that leaves nothing", transposed({.out_channels = 2, .padding = 100})),
      declaration("no features", [](auto& net, Value* x) { net.linear(x, "l", 0); }),
      declaration("negative features", [](auto& net, Value* x) { net.linear(x, "l", -5); }),
      declaration("a name twice, of other shapes",
                  [](auto& net, Value* x) {
                    net.linear(x, "l", 2);
                    net.linear(x, "l", 3);
                  }),
      declaration("a negative slope", [](auto& net, Value* x) { net.leaky_relu(x, -1); }),
      declaration("a slope that is no number",
                  [](auto& net, Value* x) { net.leaky_relu(x, kNaN); }),
      declaration("an initial slope that is no number",
                  [](auto& net, Value* x) { net.prelu(x, "p", true, kNaN); }),
      declaration("a window of nothing", pool({.kernel_h = 0})),
      declaration("a window without stride", pool({.stride_w = 0})),
      declaration("a negative padding of a window", pool({.padding_h = -1})),
      declaration("a window larger than the image", pool({.kernel_h = 99, .kernel_w = 99})),
      declaration("no bins", [](auto& net, Value* x) { net.adaptive_avg_pool2d(x, 0, 1); }),
      declaration("negative bins", [](auto& net, Value* x) { net.adaptive_avg_pool2d(x, 1, -1); }),
      declaration("upsampled to nothing",
                  [](auto& net, Value* x) { net.upsample_bilinear(x, 0, 4, false); }),
      declaration("upsampled to less than nothing",
                  [](auto& net, Value* x) { net.upsample_bilinear(x, 4, -4, true); }),
      declaration("nothing to concatenate", [](auto& net, Value*) { net.concat({}); }),
      declaration("a slice from -1", [](auto& net, Value* x) { net.slice_channels(x, -1, 2); }),
      declaration("a slice of nothing", [](auto& net, Value* x) { net.slice_channels(x, 0, 0); }),
      declaration("a slice too far", [](auto& net, Value* x) { net.slice_channels(x, 3, 2); }),
      declaration("a huge slice", [](auto& net, Value* x) { net.slice_channels(x, 1, kHuge); }),
      declaration("a probability of 1", [](auto& net, Value* x) { net.dropout(x, 1); }),
      declaration("a negative probability", [](auto& net, Value* x) { net.dropout(x, -0.1F); }),
      declaration("a probability that is no number",
                  [](auto& net, Value* x) { net.dropout(x, kNaN); }),
      declaration("another number of elements",
                  [](auto& net, Value* x) {
                    net.reshape(x, {2, 255});
                  }),
      declaration("a shape without extents", [](auto& net, Value* x) { net.reshape(x, {}); }),
      declaration("a parameter without elements",
                  [](auto& net, Value*) { net.parameter("p", {0}, ParameterKind::kWeight); }),
      declaration("a parameter without extents",
                  [](auto& net, Value*) { net.parameter("p", {}, ParameterKind::kWeight); }),
      declaration("a negative fan-in",
                  [](auto& net, Value*) {
                    net.parameter("p", {2, 2}, ParameterKind::kWeight, -1);
                  }),
      declaration("an expected number of channels that is wrong",
                  [](auto& net, Value* x) { BatchNorm2d()(net, x, "bn", {.num_features = 5}); }),
      declaration("a residual of another shape",
                  [](auto& net, Value* x) {
                    Value* other = net.max_pool2d(x, {});
                    BatchNorm2d()(net, x, "bn", {.residual = other});
                  }),
      declaration("groups that do not divide the channels",
                  [](auto& net, Value* x) { GroupNorm(3)(net, x, "gn"); }),
      declaration("no groups of channels", [](auto& net, Value* x) { GroupNorm(0)(net, x, "gn"); }),
      declaration("negative slices", [](auto& net, Value* x) { GhostBatchNorm(-1)(net, x, "bn"); }),
      declaration("a BatchNorm1d of images",
                  [](auto& net, Value* x) { BatchNorm1d()(net, x, "b"); }),
      declaration(
          "renorm without running statistics",
          [](auto& net, Value* x) { BatchRenorm({.track_running_stats = false})(net, x, "bn"); }),
      {"initial values that are not finite", [] { Initial::normal(kNaN).values("p", 2, 0); }},
      {"initial values of an infinite deviation",
       [] { Initial::kaiming_normal(0).values("p", 2, 0); }},
      {"initial values of no fans", [] { Initial::xavier_normal(0, 0).values("p", 2, 0); }},
      {"initial values of no function", [] { Initial::of(nullptr).values("p", 2, 0); }},
      {"initial values of a negative number of elements",
       [] { Initial::constant(1).values("p", -2, 0); }},
  });
}

TEST_CASE("misuse of losses throws") {
  check_throw({
      loss_mistake("a negative weight", CrossEntropyLoss{.weight = -1}),
      loss_mistake("smoothing above 1", CrossEntropyLoss{.label_smoothing = 1.5F}),
      loss_mistake("smoothing that is no number", CrossEntropyLoss{.label_smoothing = kNaN}),
      loss_mistake("weights of other classes", CrossEntropyLoss{.class_weight = {1, 2}}),
      loss_mistake("a negative gamma", FocalLoss{.gamma = -2}),
      loss_mistake("an alpha that is no number", FocalLoss{.alpha = {1, 1, kNaN}}),
      loss_mistake("a threshold of 2", OhemCrossEntropyLoss{.thresh = 2}),
      loss_mistake("a negative number of pixels", OhemCrossEntropyLoss{.min_kept = -1}),
      loss_mistake("no smoothing of dice", DiceLoss{.smooth = 0}),
      loss_mistake("a delta of 0", HuberLoss{.delta = 0}),
      loss_mistake("positives of other channels", BCEWithLogitsLoss{.pos_weight = {1}}),
      loss_mistake("negative positives", BCEWithLogitsLoss{.pos_weight = {1, -1, 1}}),
      {"an output that is not there",
       [] {
         Built built;
         Loss(CrossEntropyLoss{}).make_node({"aux", *built.network, 0});
       }},
      {"a formula that is null",
       [] {
         Built built;
         make_element_node({"out", *built.network, 0}, 1, nullptr);
       }},
  });
}

TEST_CASE("misuse of groups and barriers throws, and hangs nobody") {
  using Meeting = Barrier<int, int>;
  with_timeout(std::chrono::seconds(60), [] {
    check_throw({
        {"a group without devices", [] { SyncGroup group(std::vector<Device>{}); }},
        {"rank 2 of 2", [] { SyncGroup(cpus(2)).at(2); }},
        {"rank -1", [] { SyncGroup(cpus(2)).at(-1); }},
        {"the all-reduce of rank 9", [] { SyncGroup(cpus(2)).all_reduce(9); }},
        {"the recorder of rank -9", [] { SyncGroup(cpus(2)).recorder(-9); }},
        {"a guard of rank 5",
         [] {
           SyncGroup group(cpus(2));
           const RankGuard guard(group, 5);
         }},
        {"a barrier without a callback",
         [] {
           SyncGroup group(cpus(1));
           group.make_barrier<int, int>(nullptr).exchange(0, {"x"}, 1);
         }},
        {"a barrier's place 1 of 1",
         [] {
           SyncGroup group(cpus(1));
           group.make_barrier<int, int>([](const SyncCall&, auto, auto) {}).exchange(1, {"x"}, 1);
         }},
        {"a barrier's place -1",
         [] {
           SyncGroup group(cpus(1));
           group.make_barrier<int, int>([](const SyncCall&, auto, auto) {}).exchange(-1, {"x"}, 1);
         }},
        {"an answer to nothing",
         [] {
           SyncGroup group(cpus(1));
           group.make_barrier<int, int>([](const SyncCall&, auto, auto) {}).await(0);
         }},
        {"two posts of a rank",
         [] {
           SyncGroup group(cpus(2));
           Meeting& meeting = group.make_barrier<int, int>([](const SyncCall&, auto, auto) {});
           meeting.post(0, {"x"}, 1);
           meeting.post(0, {"x"}, 1);
         }},
        {"process groups that are no partition",
         [] {
           SyncGroup group(cpus(1));
           group.at(0).join({{0, 1}});
         }},
        {"process groups that nobody has joined",
         [] {
           SyncGroup group(cpus(1));
           group.at(0).all_show({"x", Direction::kForward, 0, 4, 3}, {});
         }},
        {"statistics that are null",
         [] {
           SyncGroup group(cpus(1));
           group.at(0).all_show({"x", Direction::kForward, 0, 4}, {5, nullptr});
         }},
        {"statistics of no rows that are null",
         [] {
           SyncGroup group(cpus(1));
           group.at(0).all_show({"x", Direction::kForward, 0, 4}, {0, nullptr});
         }},
        {"statistics of negative channels",
         [] {
           SyncGroup group(cpus(1));
           const float value = 0;
           group.at(0).all_show({"x", Direction::kForward, 0, -4}, {5, &value});
         }},
        {"a call without a layer",
         [] {
           SyncGroup group(cpus(1));
           const float values[8] = {};
           group.at(0).all_show({nullptr, Direction::kForward, 0, 4}, {5, values});
         }},
        {"an abort without a cause, and an exchange",
         [] {
           SyncGroup group(cpus(1));
           group.abort(nullptr);
           group.at(0).barrier("here");
         }},
    });
  });
}

}  // namespace lockstep::test
