# kvant_library(NAME sources... ) and compile options that every target of the project shares.

find_program(KVANT_CCACHE ccache)
if(KVANT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KVANT_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${KVANT_CCACHE}")
endif()

add_library(kvant_options INTERFACE)
target_include_directories(kvant_options INTERFACE "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/src>")
# -ffp-contract=off: the KV format specification defines every operation; fused ones change the bytes.
target_compile_options(kvant_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KVANT_WARNINGS_AS_ERRORS}>>:-Werror>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # The baseline; faster code is dispatched at run time.
  target_compile_options(kvant_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v2>)
endif()
if(KVANT_SANITIZE)
  string(REPLACE ";" "," sanitizers "${KVANT_SANITIZE}")
  target_compile_definitions(kvant_options INTERFACE KVANT_SANITIZED)
  # -O1: with checks in them the SIMD kernels take minutes to compile at -O2, and the tests run hardly slower. gcc then
  # takes members of standard types, such as those of <regex>, for uninitialised.
  target_compile_options(kvant_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-O1 -fsanitize=${sanitizers}
    -fno-omit-frame-pointer -fno-sanitize-recover=all>
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_link_options(kvant_options INTERFACE -fsanitize=${sanitizers})
endif()

# kvant_library(kvant_core SOURCES ... PUBLIC deps... PRIVATE deps...): one box of docs/design/architecture.md, installed as kvant::core.
function(kvant_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:include>")
  target_link_libraries(${name} PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:kvant_options> ${arg_PRIVATE})
  string(REPLACE "kvant_" "" export_name ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${export_name})
  add_library(kvant::${export_name} ALIAS ${name})
endfunction()
