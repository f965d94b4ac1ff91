#include "models/plan/documents.h"

#include <algorithm>
#include <numeric>

#include "models/plan/plan_reading.h"

namespace foretrain {
namespace {

constexpr std::int64_t kMostDocuments = 65'536;

/// `length` tokens each, the last what is left.
std::vector<std::int64_t> cut(std::int64_t sequence, std::int64_t length) {
  std::vector<std::int64_t> out;
  for (std::int64_t begin = 0; begin < sequence; begin += length) {
    out.push_back(std::min(length, sequence - begin));
  }
  return out;
}

Refusal refused(const std::string& message) { return {"batch/documents", message}; }

std::optional<Refusal> read_list(const Json::Array& items, Plan& plan) {
  for (const Json& item : items) {
    const auto* length = std::get_if<std::int64_t>(&item.value);
    if (length == nullptr || *length < 1 || *length > plan.sequence_length) {
      return refused("found " + describe(item) +
                     " in the list, expected whole numbers from 1 to the " +
                     text(plan.sequence_length) + " tokens of a sequence");
    }
    plan.documents.push_back(*length);
  }
  const std::int64_t sum =
      std::accumulate(plan.documents.begin(), plan.documents.end(), std::int64_t{0});
  if (sum == plan.sequence_length) return std::nullopt;
  return refused("these lengths add up to " + text(sum) + ", expected the " +
                 text(plan.sequence_length) + " tokens of a sequence");
}

}  // namespace

std::optional<Refusal> derive_documents(const Json& asked, Plan& plan) {
  if (asked.is_null()) return std::nullopt;
  const auto* length = std::get_if<std::int64_t>(&asked.value);
  const bool list = asked.array() != nullptr;
  const std::int64_t documents = list ? static_cast<std::int64_t>(asked.array()->size())
                                 : length != nullptr && *length > 0
                                     ? (plan.sequence_length - 1) / *length + 1
                                     : 0;
  if (documents < 1) {
    return refused("found " + describe(asked) +
                   ", expected tokens of a document, or a list of the lengths of all");
  }
  if (documents > kMostDocuments) {
    return refused("found " + text(documents) + " of a sequence, expected at most " +
                   text(kMostDocuments));
  }
  if (list) {
    if (auto no = read_list(*asked.array(), plan)) return no;
  } else {
    plan.documents = cut(plan.sequence_length, *length);
  }
  if (plan.documents.size() == 1) plan.documents.clear();
  return std::nullopt;
}

namespace {

/// TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py: sequences of the
/// thd format are padded to a multiple of 2c by whoever packs them.
std::optional<Refusal> refused_in_ring(const Plan& plan) {
  const std::int64_t chunks = 2 * plan.context;
  const auto odd = std::find_if(plan.documents.begin(), plan.documents.end(),
                                [chunks](std::int64_t length) { return length % chunks != 0; });
  if (odd == plan.documents.end()) return std::nullopt;
  return Refusal{"batch/documents",
                 "a document of " + text(*odd) + " tokens is not a multiple of twice context " +
                     text(plan.context) + ", as a ring cuts each into " + text(chunks) +
                     " chunks: give padded lengths, or set kernels.context to allgather or "
                     "alltoall"};
}

}  // namespace

std::optional<Refusal> refused_documents(const Model& model, const Plan& plan) {
  if (model.attention_chunk > 0 && plan.sequence_length > model.attention_chunk) {
    return Refusal{"batch/sequence",
                   "found " + text(plan.sequence_length) + ": attention within chunks of " +
                       text(model.attention_chunk) +
                       " tokens (the model's attention_chunk_size) is modelled for sequences of "
                       "one chunk; null there lets tokens see all before them",
                   ErrorKind::kUnsupported};
  }
  if (plan.documents.empty()) return std::nullopt;
  const auto unsupported = [](const std::string& message) {
    return Refusal{"batch/documents", message, ErrorKind::kUnsupported};
  };
  if (model.is_encoder_decoder()) {
    return unsupported(
        "packed documents are modelled for decoders and encoders, not for both in one");
  }
  if (plan.context == 1) return std::nullopt;
  if (plan.context_exchange == ContextExchange::kRingSelf) {
    return unsupported(
        "ring self-attention does not attend inside documents; set kernels.context to ring, "
        "allgather or alltoall, with fused attention");
  }
  if (plan.context_exchange == ContextExchange::kRing) return refused_in_ring(plan);
  const bool windowed = model.sliding_window > 0 && model.sliding_window < plan.sequence_length;
  if (windowed && plan.context_exchange == ContextExchange::kAllGather) {
    return unsupported(
        "documents and sliding windows do not go together with gathered keys; set kernels.context "
        "to alltoall");
  }
  return std::nullopt;
}

}  // namespace foretrain
