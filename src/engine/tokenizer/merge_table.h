#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvant::engine {

/// What a pair of adjacent tokens merges into.
struct Merge {
  int32_t rank = -1;  ///< Lower merges first; -1: the pair does not merge.
  int32_t id = -1;
};

/// Pair of ids -> merge: an open-addressing table, at most half full. Ids are not negative.
class MergeTable {
 public:
  explicit MergeTable(size_t num_merges);
  /// A later merge of the same pair replaces the earlier one, as in Hugging Face tokenizers.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;
  int shift_ = 0;
};

/// One symbol of a word on its way through the merges: a linked list inside a vector.
struct BpeSymbol {
  int32_t id;
  int32_t previous;
  int32_t next;
  bool alive;
};

/// Buffers that `merge_symbols` reuses from word to word.
struct BpeScratch {
  struct Candidate {
    int32_t rank;
    int32_t position;
    int32_t id;
  };
  std::vector<BpeSymbol> symbols;
  std::vector<Candidate> heap;
};

/// Applies merges to `ids` in place until none applies: best rank first, leftmost among equals. O(n log n).
void merge_symbols(const MergeTable& table, std::vector<int32_t>& ids, BpeScratch& scratch);

}  // namespace kvant::engine
