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

constexpr const char* kDocumentsKey = "batch/documents";

void read_list(const Json::Array& items, Plan& plan, Violations& out) {
  std::int64_t sum = 0;
  for (const Json& item : items) {
    const auto* length = std::get_if<std::int64_t>(&item.value);
    if (length == nullptr || *length < 1 || *length > plan.sequence_length) {
      return out.add(kDocumentsKey, "found " + describe(item) +
                                        " in the list, expected whole numbers from 1 to the " +
                                        text(plan.sequence_length) + " tokens of a sequence");
    }
    plan.documents.push_back(*length);
    sum += *length;
  }
  if (sum == plan.sequence_length) return;
  out.add(kDocumentsKey, "these lengths add up to " + text(sum) + ", expected the " +
                             text(plan.sequence_length) + " tokens of a sequence");
}

}  // namespace

void derive_documents(const Json& asked, Plan& plan, Violations& out) {
  if (asked.is_null()) return;
  const auto* length = std::get_if<std::int64_t>(&asked.value);
  const bool list = asked.array() != nullptr;
  const std::int64_t documents = list ? static_cast<std::int64_t>(asked.array()->size())
                                 : length != nullptr && *length > 0
                                     ? (plan.sequence_length - 1) / *length + 1
                                     : 0;
  if (documents < 1) {
    return out.add(kDocumentsKey,
                   "found " + describe(asked) +
                       ", expected tokens of a document, or a list of the lengths of all");
  }
  if (documents > kMostDocuments) {
    return out.add(kDocumentsKey, "found " + text(documents) + " of a sequence, expected at most " +
                                      text(kMostDocuments));
  }
  if (list) {
    read_list(*asked.array(), plan, out);
  } else {
    plan.documents = cut(plan.sequence_length, *length);
  }
  if (plan.documents.size() == 1) plan.documents.clear();
}

namespace {

/// TransformerEngine, pytorch/attention/dot_product_attention/context_parallel.py: sequences of the
/// thd format are padded to a multiple of 2c by whoever packs them.
void check_in_ring(const Plan& plan, Violations& out) {
  const std::int64_t chunks = 2 * plan.context;
  const auto odd = std::find_if(plan.documents.begin(), plan.documents.end(),
                                [chunks](std::int64_t length) { return length % chunks != 0; });
  if (odd == plan.documents.end()) return;
  out.add(kDocumentsKey, "a document of " + text(*odd) +
                             " tokens is not a multiple of twice context " + text(plan.context) +
                             ", as a ring cuts each into " + text(chunks) +
                             " chunks: give padded lengths, or set kernels.context to allgather or "
                             "alltoall");
}

}  // namespace

void check_documents(const Model& model, const Plan& plan, Violations& out) {
  if (model.attention_chunk > 0 && plan.sequence_length > model.attention_chunk) {
    out.unsupported("batch/sequence",
                    "found " + text(plan.sequence_length) + ": attention within chunks of " +
                        text(model.attention_chunk) +
                        " tokens (the model's attention_chunk_size) is modelled for sequences of "
                        "one chunk; null there lets tokens see all before them");
  }
  if (plan.documents.empty()) return;
  if (model.ends.patch > 0) {
    out.add(kDocumentsKey, "a sequence of this model is an image");
  }
  if (model.is_encoder_decoder()) {
    out.unsupported(kDocumentsKey,
                    "packed documents are modelled for decoders and encoders, not for both in one");
  }
  if (plan.context == 1) return;
  if (plan.context_exchange == ContextExchange::kRingSelf) {
    out.unsupported(kDocumentsKey,
                    "ring self-attention does not attend inside documents; set kernels.context to "
                    "ring, allgather or alltoall, with fused attention");
  }
  if (plan.context_exchange == ContextExchange::kRing) check_in_ring(plan, out);
  const bool windowed = model.sliding_window > 0 && model.sliding_window < plan.sequence_length;
  if (windowed && plan.context_exchange == ContextExchange::kAllGather) {
    out.unsupported(kDocumentsKey,
                    "documents and sliding windows do not go together with gathered keys; set "
                    "kernels.context to alltoall");
  }
}

}  // namespace foretrain
