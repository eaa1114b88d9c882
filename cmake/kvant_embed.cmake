# Writes files into a C++ source: cmake -DOUTPUT=x.cc -DFOLDER=dir -DFILES=a;b -P kvant_embed.cmake
set(arrays "")
set(rows "")
set(index 0)
foreach(file IN LISTS FILES)
  file(READ "${FOLDER}/${file}" bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${file}\", {reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "#include \"server/page_files.h\"

#include <array>

namespace kvant::server {
namespace {
${arrays}}  // namespace

std::span<const PageFile> page_files() {
  static const std::array<PageFile, ${index}> kFiles{{
${rows}  }};
  return kFiles;
}

}  // namespace kvant::server
")
