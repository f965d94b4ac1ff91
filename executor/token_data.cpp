#include "executor/token_data.h"

#include <numeric>
#include <vector>

namespace foretrain {
namespace {

/// Tokens 0 .. length of one sequence.
std::vector<std::int64_t> sequence(const OpContext& context, std::int64_t number) {
  const std::uint64_t key =
      mix(mix(context.training.seed, "data"), static_cast<std::uint64_t>(number));
  const std::int64_t vocabulary = context.batch.vocabulary;
  std::vector<std::int64_t> out;
  std::int64_t token = 0;
  for (std::int64_t t = 0; t <= context.batch.length; ++t) {
    const bool follows = t > 0 && uniform_at(key, 2 * t) < 0.75;
    const double drawn = uniform_at(key, 2 * t + 1) * static_cast<double>(vocabulary);
    token = follows ? (5 * token + 3) % vocabulary : static_cast<std::int64_t>(drawn);
    out.push_back(token);
  }
  return out;
}

}  // namespace

std::int64_t position_in_part(std::int64_t i, std::int64_t member, std::int64_t members,
                              std::int64_t length, const std::vector<std::int64_t>& documents) {
  const std::int64_t whole = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
  std::int64_t begin = 0;
  for (const std::int64_t document : documents) {
    const std::int64_t own = document * length / whole;
    if (i < own / members) return begin + position_in_part(i, member, members, own);
    i -= own / members;
    begin += own;
  }
  return position_in_part(i, member, members, length);
}

void load_tokens(const OpContext& context, const Operand& out) {
  const Batch& batch = context.batch;
  const std::int64_t of_step =
      batch.sequences * batch.microbatches * context.place(batch.split_over).size;
  const std::int64_t first = context.step * of_step + context.first_sequence();
  const std::int64_t shift = out.buffer->name == "labels" ? 1 : 0;
  auto* ids = reinterpret_cast<std::int64_t*>(out.data);
  for (std::int64_t s = 0; s < batch.sequences; ++s) {
    const std::vector<std::int64_t> tokens = sequence(context, first + s);
    for (std::int64_t i = 0; i < context.length(); ++i) {
      const std::int64_t t = context.position_in_part(i, context.place(batch.context).index);
      *ids++ = tokens[static_cast<std::size_t>(t + shift)];
    }
  }
}

}  // namespace foretrain
