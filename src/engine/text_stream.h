#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/stop_filter.h"
#include "engine/tokenizer/tokenizer.h"

namespace kvant::engine {

/// Turns sampled tokens into the text that a caller sees: whole characters only, cut at stop strings.
class TextStream {
 public:
  using OnText = std::function<bool(std::string_view text)>;

  /// `tokenizer` and `text`, which collects everything shown, must outlive the stream. `on_text` may be empty; false
  /// from it stops the stream.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops, OnText on_text, std::string& text)
      : tokenizer_(tokenizer), text_(text), on_text_(std::move(on_text)), filter_(std::move(stops)) {}

  void push(int32_t token) { emit(filter_.push(decoder_.push(tokenizer_.token_bytes(token)))); }
  void finish() {
    emit(filter_.push(decoder_.flush()));
    emit(filter_.flush());
  }
  /// A stop string was met, or the caller wants no more.
  bool stopped() const { return declined_ || filter_.stopped(); }

 private:
  void emit(const std::string& piece) {
    if (piece.empty() || declined_) return;
    text_ += piece;
    if (on_text_) declined_ = !on_text_(piece);
  }

  const Tokenizer& tokenizer_;
  std::string& text_;
  OnText on_text_;
  StreamDecoder decoder_;
  StopFilter filter_;
  bool declined_ = false;
};

}  // namespace kvant::engine
