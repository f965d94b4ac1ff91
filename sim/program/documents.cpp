#include "sim/program/documents.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/program/context_pairs.h"

namespace foretrain {
namespace {

/// Adds the queries of a document from `begin` to `end` that stand in [first, last).
void add_chunk(std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t last,
               DocumentPart& part) {
  const std::int64_t from = std::max(begin, first);
  const std::int64_t to = std::min(end, last);
  if (from >= to) return;
  part.queries += to - from;
  part.pairs += static_cast<double>(to - from) * static_cast<double>(from + to - 2 * begin) / 2;
}

std::vector<DocumentPart> documents_of_member(const Attention& work, std::int64_t member) {
  const std::int64_t members = whole_length(work) / work.q_len;
  const std::int64_t chunk = work.q_len / 2;
  std::vector<DocumentPart> out;
  std::int64_t begin = 0;
  for (const std::int64_t length : work.documents) {
    DocumentPart part;
    for (const std::int64_t i : {member, 2 * members - 1 - member}) {
      add_chunk(begin, begin + length, i * chunk, (i + 1) * chunk, part);
    }
    if (part.queries > 0) out.push_back(part);
    begin += length;
  }
  return out;
}

double pairs_of(const std::vector<DocumentPart>& parts) {
  double sum = 0;
  for (const DocumentPart& part : parts) sum += part.pairs;
  return sum;
}

}  // namespace

std::vector<Attention> by_document(const Attention& work) {
  std::vector<Attention> out;
  Attention one = work;
  one.documents.clear();
  const std::int64_t whole =
      std::accumulate(work.documents.begin(), work.documents.end(), std::int64_t{0});
  for (const std::int64_t length : work.documents) {
    one.q_len = length * work.q_len / whole;
    one.kv_len = length * work.kv_len / whole;
    out.push_back(one);
  }
  return out;
}

std::vector<DocumentPart> slowest_documents(const Attention& work) {
  std::vector<DocumentPart> out;
  for (std::int64_t member = 0; member < whole_length(work) / work.q_len; ++member) {
    std::vector<DocumentPart> parts = documents_of_member(work, member);
    if (pairs_of(parts) > pairs_of(out)) out = std::move(parts);
  }
  return out;
}

double mean_document_pairs(const Attention& work) {
  double pairs = 0;
  for (const std::int64_t length : work.documents) {
    pairs += static_cast<double>(length) * static_cast<double>(length) / 2;
  }
  return pairs * static_cast<double>(work.q_len) / static_cast<double>(whole_length(work));
}

}  // namespace foretrain
