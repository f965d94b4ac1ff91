#include "models/architecture/network_config.h"

#include <algorithm>
#include <array>
#include <map>

#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

using IntRange = JsonReader::IntRange;
constexpr IntRange kChannels{1, 1 << 20};
constexpr IntRange kExtent{1, 1 << 14};
constexpr IntRange kPad{0, 1 << 14};
constexpr std::int64_t kMostNodes = 100'000;  ///< and items, repetitions counted
constexpr int kDeepest = 8;
/// Elements of one image anywhere, and parameters of one layer.
constexpr double kMostElements = 1e10;

/// The keys of which an item has one: what kind of layer it is.
constexpr std::array kHeads = {"conv",      "linear", "pool",    "branches",
                               "auxiliary", "repeat", "dropout", "parameters"};

std::string text_of(const ImageShape& s) {
  return text(s.channels) + " x " + text(s.height) + " x " + text(s.width);
}

std::vector<std::string> keys_of(const Json& item) {
  std::vector<std::string> out;
  for (const auto& [key, unused] : *item.object()) out.push_back(key);
  return out;
}

/// A number, or one for the height and one for the width.
void read_pair(JsonReader& reader, const char* key, std::int64_t& height, std::int64_t& width,
               IntRange range) {
  const Json* json = reader.take(key);
  if (json == nullptr) return;
  const auto number = [&](const Json& value, std::int64_t& out) {
    const auto* found = std::get_if<std::int64_t>(&value.value);
    if (found == nullptr || *found < range.low || *found > range.high) return false;
    out = *found;
    return true;
  };
  const Json::Array* list = json->array();
  const bool good = list == nullptr ? number(*json, height) && number(*json, width)
                                    : list->size() == 2 && number((*list)[0], height) &&
                                          number((*list)[1], width);
  if (good) return;
  reader.fail(key, "found " + describe(*json) + ", expected a whole number from " +
                       text(range.low) + " to " + text(range.high) +
                       ", or [of the height, of the width]");
}

class NetworkReader {
 public:
  NetworkReader(const ImageShape& image, std::string source)
      : x_source(std::move(source)), x_at{image} {
    x_network.image = image;
  }

  Result<Network> run(const Json& layers, const std::string& pointer) {
    FT_TRY(read_blocks(layers, pointer, 0));
    if (x_network.blocks.empty() || !x_block.nodes.empty()) {
      return fail(pointer,
                  x_network.blocks.empty() ? "no layers" : "the last item needs a layer behind it");
    }
    const std::vector<Node>& first = x_network.blocks.front().nodes;
    if (std::all_of(first.begin(), first.end(), [](const Node& n) {
          return n.parameter_count() == 0 && n.kind != NodeKind::kOpaque;
        })) {
      return fail(pointer + "/0",
                  "the first layer has no parameters: give what it does to images "
                  "as their size (\"image\")");
    }
    const ImageShape& last = x_network.blocks.back().out;
    if (last.pixels() != 1) {
      return fail(pointer, "the last layer leaves " + text_of(last) +
                               " of an image, expected one number for each class");
    }
    return std::move(x_network);
  }

 private:
  /// Where the branch that is being read stands: its last node, and what that leaves.
  struct At {
    ImageShape shape;
    std::int32_t node = -1;
  };

  Error fail(const std::string& pointer, const std::string& message) const {
    return input_error(place_in(x_source, pointer) + message);
  }

  Status count(std::int64_t more, const std::string& pointer) {
    x_count += more;
    if (x_count <= kMostNodes) return ok_status();
    return fail(pointer, "more than " + text(kMostNodes) + " layers, repetitions counted");
  }

  /// Items of the list itself: each becomes a block. A dropout or an auxiliary head goes with the
  /// item behind it.
  Status read_blocks(const Json& layers, const std::string& pointer, int depth) {
    if (layers.array() == nullptr) {
      return fail(pointer, "found " + describe(layers) + ", expected a list of layers");
    }
    for (std::size_t i = 0; i < layers.array()->size(); ++i) {
      const Json& item = (*layers.array())[i];
      const std::string at = pointer + "/" + std::to_string(i);
      FT_TRY(count(1, at));
      FT_ASSIGN(const std::string head, head_of(item, at));
      if (head == "repeat") {
        FT_TRY(read_repeat(item, at, depth));
        continue;
      }
      if (x_block.nodes.empty()) x_block.in = x_at.shape;
      const std::size_t before = x_block.nodes.size();
      FT_TRY(read_item(item, head, at, depth));
      if (head == "dropout" || head == "auxiliary") continue;
      if (x_block.nodes.size() == before) return fail(at, "an item without any layer");
      x_block.output = x_at.node;
      x_block.out = x_at.shape;
      x_block.first = x_network.blocks.empty();
      FT_TRY(count(static_cast<std::int64_t>(x_block.nodes.size()), at));
      x_network.blocks.push_back(std::move(x_block));
      x_block = NetworkBlock();
      x_names.clear();
      x_at.node = -1;
    }
    return ok_status();
  }

  Status read_repeat(const Json& item, const std::string& pointer, int depth) {
    if (depth >= kDeepest) return fail(pointer, "lists within lists deeper than " + text(kDeepest));
    JsonReader reader(item, x_source, pointer);
    std::int64_t times = 1;
    reader.read("repeat", times, IntRange{1, 10'000});
    const Json* layers = reader.require("layers", "the layers that are repeated");
    FT_TRY(reader.finish());
    for (std::int64_t i = 0; i < times; ++i) {
      FT_TRY(count(1, pointer));
      FT_TRY(read_blocks(*layers, pointer + "/layers", depth + 1));
    }
    return ok_status();
  }

  Result<std::string> head_of(const Json& item, const std::string& pointer) const {
    if (item.object() == nullptr) {
      return fail(pointer, "found " + describe(item) + ", expected an object");
    }
    std::string found;
    for (const char* head : kHeads) {
      if (item.find(head) == nullptr) continue;
      if (!found.empty()) return fail(pointer, "is both " + found + " and " + head);
      found = head;
    }
    if (!found.empty()) return found;
    for (const char* alone : {"norm", "activation"}) {
      if (item.find(alone) != nullptr) return std::string(alone);
    }
    std::vector<std::string> heads(kHeads.begin(), kHeads.end());
    std::string message =
        "a layer is conv, linear, pool, norm, activation, dropout, branches, "
        "auxiliary, repeat or numbers (parameters)";
    for (const std::string& key : keys_of(item)) {
      const std::string near = nearest_name(key, heads);
      if (!near.empty()) message += " (did you mean \"" + near + "\"?)";
    }
    return fail(pointer, message);
  }

  Status read_item(const Json& item, const std::string& head, const std::string& pointer,
                   int depth) {
    JsonReader reader(item, x_source, pointer);
    reader.read("name", x_name);
    if (head == "conv") read_convolution(reader);
    if (head == "linear") read_linear(reader);
    if (head == "pool") read_pool(reader);
    if (head == "dropout") read_dropout(reader);
    if (head == "parameters") read_numbers(reader);
    if (head == "branches") FT_TRY(read_branches(reader, pointer, depth));
    if (head == "auxiliary") FT_TRY(read_auxiliary(reader, pointer, depth));
    if (head != "auxiliary" && head != "dropout") read_rest(reader);
    x_name.clear();
    FT_TRY(reader.finish());
    return ok_status();
  }

  /// "conv1", "conv2", ... in a block.
  std::string name_of(const char* kind) {
    const std::string stem = x_name.empty() ? kind : x_name + "." + kind;
    return stem + text(++x_names[stem]);
  }

  Node node(NodeKind kind, const char* name) {
    Node out;
    out.kind = kind;
    out.name = name_of(name);
    out.inputs = {x_at.node};
    out.in = out.out = x_at.shape;
    return out;
  }

  void push(JsonReader& reader, const char* key, Node node) {
    const auto parameters =
        static_cast<double>(node.in.channels) * static_cast<double>(node.out.channels) *
        static_cast<double>(node.kernel_height) * static_cast<double>(node.kernel_width);
    const double elements = static_cast<double>(node.out.channels) *
                            static_cast<double>(node.out.height) *
                            static_cast<double>(node.out.width);
    if (std::max(parameters, elements) > kMostElements) {
      return reader.fail(key, "a layer of more than 10^10 elements or parameters");
    }
    x_at.shape = node.out;
    x_at.node = static_cast<std::int32_t>(x_block.nodes.size());
    x_block.nodes.push_back(std::move(node));
  }

  /// Extents of what a kernel leaves: floor((extent + 2 pad - kernel) / stride) + 1.
  void slide(JsonReader& reader, Node& n) const {
    const auto one = [&](std::int64_t extent, std::int64_t kernel, std::int64_t pad) {
      if (kernel > extent + 2 * pad) {
        reader.fail("kernel", text(kernel) + " is larger than the " + text(extent) +
                                  " that it slides over, padding " + text(pad));
        return std::int64_t{1};
      }
      return (extent + 2 * pad - kernel) / n.stride + 1;
    };
    n.out.height = one(n.in.height, n.kernel_height, n.pad_height);
    n.out.width = one(n.in.width, n.kernel_width, n.pad_width);
  }

  void read_window(JsonReader& reader, Node& n) const {
    read_pair(reader, "kernel", n.kernel_height, n.kernel_width, kExtent);
    reader.read("stride", n.stride, kExtent);
    read_pair(reader, "padding", n.pad_height, n.pad_width, kPad);
    if (!reader.failed()) slide(reader, n);
  }

  void read_convolution(JsonReader& reader) {
    Node n = node(NodeKind::kConvolution, "conv");
    reader.read("conv", n.out.channels, kChannels);
    read_window(reader, n);
    bool norm = false;
    reader.read("norm", norm);
    n.bias = !norm;
    reader.read("bias", n.bias);
    push(reader, "conv", std::move(n));
  }

  void read_linear(JsonReader& reader) {
    Node n = node(NodeKind::kLinear, "linear");
    n.bias = true;
    n.out = {0, 1, 1};
    reader.read("linear", n.out.channels, kChannels);
    reader.read("bias", n.bias);
    if (static_cast<double>(n.in.elements()) * static_cast<double>(n.out.channels) >
        kMostElements) {
      return reader.fail("linear", "a layer of more than 10^10 parameters");
    }
    push(reader, "linear", std::move(n));
  }

  /// Without a kernel over the whole image.
  void read_pool(JsonReader& reader) {
    int kind = 0;
    reader.read_choice("pool", kind, {"max", "average"});
    Node n = node(kind == 0 ? NodeKind::kMaxPool : NodeKind::kAveragePool, "pool");
    n.kernel_height = n.in.height;
    n.kernel_width = n.in.width;
    if (const Json* kernel = reader.take("kernel")) {
      if (const auto* size = std::get_if<std::int64_t>(&kernel->value)) {
        n.stride = std::clamp<std::int64_t>(*size, 1, kExtent.high);
      }
    }
    read_window(reader, n);
    push(reader, "pool", std::move(n));
  }

  void read_dropout(JsonReader& reader) {
    Node n = node(NodeKind::kDropout, "dropout");
    reader.read("dropout", n.rate, JsonReader::Range{0, 1});
    push(reader, "dropout", std::move(n));
  }

  void read_numbers(JsonReader& reader) {
    constexpr IntRange kNumber{0, 10'000'000'000};
    Node n = node(NodeKind::kOpaque, "layer");
    reader.read("parameters", n.parameters, kNumber);
    reader.require("forward_flops", "the FLOPs of an image's forward pass");
    reader.read("forward_flops", n.flops, IntRange{0, 1'000'000'000'000'000});
    reader.read("activation_bytes", n.kept_bytes, kNumber);
    const Json* shape = reader.require("output", "[channels, height, width]");
    const Json::Array* list = shape == nullptr ? nullptr : shape->array();
    const std::array<std::int64_t*, 3> extents = {&n.out.channels, &n.out.height, &n.out.width};
    bool good = list != nullptr && list->size() == extents.size();
    for (std::size_t i = 0; good && i < extents.size(); ++i) {
      const auto* extent = std::get_if<std::int64_t>(&(*list)[i].value);
      good = extent != nullptr && *extent >= 1 && *extent <= kChannels.high;
      if (good) *extents.at(i) = *extent;
    }
    if (shape != nullptr && !good) {
      reader.fail("output", "found " + describe(*shape) + ", expected [channels, height, width]");
    }
    push(reader, "parameters", std::move(n));
  }

  Status read_branches(JsonReader& reader, const std::string& pointer, int depth) {
    if (depth >= kDeepest) return fail(pointer, "branches deeper than " + text(kDeepest));
    int join = 0;
    reader.require("join", "\"add\" or \"concat\"");
    reader.read_choice("join", join, {"add", "concat"});
    const Json* branches = reader.take("branches");
    if (branches == nullptr || branches->array() == nullptr || branches->array()->size() < 2) {
      return fail(pointer + "/branches", "expected a list of two or more lists of layers");
    }
    const At from = x_at;
    std::vector<At> ends;
    for (std::size_t b = 0; b < branches->array()->size(); ++b) {
      x_at = from;
      FT_TRY(read_branch((*branches->array())[b], pointer + "/branches/" + std::to_string(b),
                         depth + 1));
      ends.push_back(x_at);
    }
    Node n =
        node(join == 0 ? NodeKind::kAdd : NodeKind::kConcatenate, join == 0 ? "add" : "concat");
    n.inputs.clear();
    n.in = n.out = ends.front().shape;
    for (const At& end : ends) {
      n.inputs.push_back(end.node);
      if (n.inputs.size() == 1) continue;
      ImageShape like = end.shape;
      if (join == 1) like.channels = n.in.channels;
      if (like != n.in) {
        return fail(pointer + "/branches", "leave " + text_of(n.in) + " and " + text_of(end.shape) +
                                               " of an image, which cannot be joined");
      }
      if (join == 1) n.out.channels += end.shape.channels;
    }
    push(reader, "branches", std::move(n));
    return ok_status();
  }

  Status read_branch(const Json& layers, const std::string& pointer, int depth) {
    if (layers.array() == nullptr) {
      return fail(pointer, "found " + describe(layers) + ", expected a list of layers");
    }
    for (std::size_t i = 0; i < layers.array()->size(); ++i) {
      const Json& item = (*layers.array())[i];
      const std::string at = pointer + "/" + std::to_string(i);
      FT_ASSIGN(const std::string head, head_of(item, at));
      if (head == "repeat" || head == "auxiliary") {
        return fail(at, head + " stands in the model's own list, not in a branch");
      }
      const std::string outer = x_name;
      FT_TRY(read_item(item, head, at, depth));
      x_name = outer;
    }
    return ok_status();
  }

  /// A head with a loss of its own beside the network.
  Status read_auxiliary(JsonReader& reader, const std::string& pointer, int depth) {
    const At from = x_at;
    x_name = "auxiliary";
    FT_TRY(read_branch(*reader.take("auxiliary"), pointer + "/auxiliary", depth + 1));
    if (x_at.shape.pixels() != 1) {
      return fail(pointer, "leaves " + text_of(x_at.shape) +
                               " of an image, expected one number for each class");
    }
    push(reader, "auxiliary", node(NodeKind::kLoss, "loss"));
    x_at = from;
    return ok_status();
  }

  /// What follows a layer within its item.
  void read_rest(JsonReader& reader) {
    bool norm = false;
    reader.read("norm", norm);
    if (norm) push(reader, "norm", node(NodeKind::kNorm, "norm"));
    int activation = -1;
    reader.read_choice("activation", activation, {"none", "relu"});
    if (activation == 1) push(reader, "activation", node(NodeKind::kRelu, "relu"));
  }

  std::string x_source;
  std::int64_t x_count = 0;
  Network x_network;
  NetworkBlock x_block;  ///< being read
  At x_at;
  std::string x_name;  ///< of the item
  std::map<std::string, int> x_names;
};

}  // namespace

Result<Network> read_network(const Json& layers, const ImageShape& image, const std::string& source,
                             const std::string& pointer) {
  return NetworkReader(image, source).run(layers, pointer);
}

}  // namespace foretrain
