#include "engine/tokenizer/jinja_library.h"

namespace kvant::engine::jinja {

namespace {

using enum LibraryKind;
constexpr int kMany = 1 << 20;

constexpr LibraryEntry kEntries[] = {
    {kFilter, "abs"},
    {kFilter, "capitalize"},
    {kFilter, "count"},
    {kFilter, "d", 0, 2, "default_value boolean"},
    {kFilter, "default", 0, 2, "default_value boolean"},
    {kFilter, "dictsort"},
    {kFilter, "first"},
    {kFilter, "float"},
    {kFilter, "indent", 0, 3, "width first blank"},
    {kFilter, "int"},
    {kFilter, "items"},
    {kFilter, "join", 0, 2, "d attribute"},
    {kFilter, "last"},
    {kFilter, "length"},
    {kFilter, "list"},
    {kFilter, "lower"},
    {kFilter, "map", 1, 1, "attribute"},
    {kFilter, "max"},
    {kFilter, "min"},
    {kFilter, "reject", 1, 2},
    {kFilter, "rejectattr", 1, 3},
    {kFilter, "replace", 2, 3, "old new count"},
    {kFilter, "reverse"},
    {kFilter, "safe"},
    {kFilter, "select", 1, 2},
    {kFilter, "selectattr", 1, 3},
    {kFilter, "sort", 0, 3, "reverse case_sensitive attribute"},
    {kFilter, "string"},
    {kFilter, "tojson", 0, 4, "ensure_ascii indent separators sort_keys"},
    {kFilter, "trim", 0, 1, "chars"},
    {kFilter, "unique"},
    {kFilter, "upper"},

    {kTest, "boolean"},
    {kTest, "defined"},
    {kTest, "divisibleby", 1, 1},
    {kTest, "eq", 1, 1},
    {kTest, "equalto", 1, 1},
    {kTest, "even"},
    {kTest, "false"},
    {kTest, "float"},
    {kTest, "ge", 1, 1},
    {kTest, "gt", 1, 1},
    {kTest, "in", 1, 1},
    {kTest, "integer"},
    {kTest, "iterable"},
    {kTest, "le", 1, 1},
    {kTest, "lt", 1, 1},
    {kTest, "mapping"},
    {kTest, "ne", 1, 1},
    {kTest, "none"},
    {kTest, "number"},
    {kTest, "odd"},
    {kTest, "sequence"},
    {kTest, "string"},
    {kTest, "true"},
    {kTest, "undefined"},

    {kMethod, "append", 1, 1},  // refused when called, as in Jinja's sandbox
    {kMethod, "capitalize"},
    {kMethod, "cycle", 1, kMany},  // of loop
    {kMethod, "endswith", 1, 1},
    {kMethod, "format", 0, kMany},
    {kMethod, "get", 1, 2},
    {kMethod, "items"},
    {kMethod, "keys"},
    {kMethod, "lower"},
    {kMethod, "lstrip", 0, 1},
    {kMethod, "pop", 0, 2},  // as append
    {kMethod, "replace", 2, 3},
    {kMethod, "rstrip", 0, 1},
    {kMethod, "split", 0, 2, "sep maxsplit"},
    {kMethod, "startswith", 1, 1},
    {kMethod, "strip", 0, 1},
    {kMethod, "title"},
    {kMethod, "upper"},
    {kMethod, "values"},

    {kFunction, "dict", 0, kMany},
    {kFunction, "namespace", 0, kMany},
    {kFunction, "raise_exception", 1, 1},
    {kFunction, "range", 1, 3},
    {kFunction, "strftime_now", 1, 1},
};

}  // namespace

const LibraryEntry* find_entry(LibraryKind kind, std::string_view name) {
  for (const LibraryEntry& entry : kEntries) {
    if (entry.kind == kind && entry.name == name) return &entry;
  }
  return nullptr;
}

std::string_view to_string(LibraryKind kind) {
  switch (kind) {
    case kFilter: return "filter";
    case kTest: return "test";
    case kMethod: return "method";
    case kFunction: return "function";
  }
  return "unknown kind";
}

int keyword_position(const LibraryEntry& entry, std::string_view keyword) {
  std::string_view rest = entry.keywords;
  for (int position = 0; !rest.empty(); ++position) {
    const size_t space = rest.find(' ');
    if (rest.substr(0, space) == keyword) return position;
    rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
  }
  return -1;
}

}  // namespace kvant::engine::jinja
