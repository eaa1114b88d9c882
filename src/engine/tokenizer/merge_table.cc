#include "engine/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>

namespace kvant::engine {

namespace {

constexpr uint64_t kEmptySlot = ~uint64_t{0};  // No pair: ids are not negative.

uint64_t pack(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

/// Orders a heap whose front is the best candidate.
bool worse(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

MergeTable::MergeTable(size_t num_merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, num_merges * 2));
  slots_.assign(size, Slot{kEmptySlot, {}});
  shift_ = 64 - std::countr_zero(size);
}

size_t MergeTable::slot_of(uint64_t pair) const {
  size_t slot = static_cast<size_t>(pair * 0x9E3779B97F4A7C15ULL >> shift_);  // Fibonacci hashing
  while (slots_[slot].pair != kEmptySlot && slots_[slot].pair != pair) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pack(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

Merge MergeTable::find(int32_t left, int32_t right) const { return slots_[slot_of(pack(left, right))].merge; }

void merge_symbols(const MergeTable& table, std::vector<int32_t>& ids, BpeScratch& scratch) {
  std::vector<BpeSymbol>& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  const int32_t count = static_cast<int32_t>(ids.size());
  for (int32_t i = 0; i < count; ++i) symbols.push_back({ids[i], i - 1, i + 1 < count ? i + 1 : -1, true});

  const auto offer = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Merge merge = table.find(symbols[left].id, symbols[symbols[left].next].id);
    if (merge.rank < 0) return;
    heap.push_back({merge.rank, left, merge.id});
    std::push_heap(heap.begin(), heap.end(), worse);
  };
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);

  while (!heap.empty()) {
    const BpeScratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), worse);
    heap.pop_back();
    BpeSymbol& left = symbols[best.position];
    if (!left.alive || left.next < 0) continue;
    BpeSymbol& right = symbols[left.next];
    // The pair may have changed since it was offered.
    if (table.find(left.id, right.id).id != best.id) continue;
    left.id = best.id;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    offer(left.previous);
    offer(best.position);
  }
  ids.clear();
  for (int32_t i = 0; i >= 0 && i < count; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace kvant::engine
