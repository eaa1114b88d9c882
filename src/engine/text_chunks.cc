#include "engine/text_chunks.h"

#include <algorithm>

namespace kvant::engine {

std::vector<int32_t> encode_chunks(const Tokenizer& tokenizer, std::string_view text, int32_t context) {
  std::vector<int32_t> ids = tokenizer.encode(text);
  if (!tokenizer.add_bos() || !tokenizer.bos() || context < 2) return ids;
  const auto piece = static_cast<size_t>(context) - 1;
  std::vector<int32_t> out;
  for (size_t begin = 0; begin < ids.size(); begin += piece) {
    out.push_back(*tokenizer.bos());
    const auto first = ids.begin() + static_cast<ptrdiff_t>(begin);
    out.insert(out.end(), first, first + static_cast<ptrdiff_t>(std::min(piece, ids.size() - begin)));
  }
  return out;
}

}  // namespace kvant::engine
