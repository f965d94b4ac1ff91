// Attention over sequences that pack several documents, inside each document alone.
#pragma once

#include <vector>

#include "sim/program/work.h"

namespace foretrain {

/// One for every document: over whole sequences, or where each document is cut among members of a
/// ring (ContextPart::kOwn, kMember), over the same part of each.
std::vector<Attention> by_document(const Attention& work);

/// What the mask leaves of one document to one rank: query-key pairs of one head and one sequence.
struct DocumentPart {
  std::int64_t queries = 0;
  double pairs = 0;
};

/// A member of context-parallel ranks that gathered all keys (ContextPart::kAll) asks for chunks i
/// and 2c-1-i of 2c of a sequence. A query at position x of a document that begins at b sees x - b
/// keys, so members have unequal work: that of the one with most pairs. Without windows.
std::vector<DocumentPart> slowest_documents(const Attention& work);

/// Pairs of a member in the mean: sum d^2 / 2c over documents of d tokens.
double mean_document_pairs(const Attention& work);

}  // namespace foretrain
