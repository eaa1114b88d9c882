# The CUDA language, and the one list of GPU families that images are built for.

set(KVANT_CUDA_ARCHITECTURES "90a" CACHE STRING "GPU families to build for; \"all\" or names from kvant_cuda.cmake")
set(KVANT_CUDA_MATRIX "core" CACHE STRING "core: what most models need; full: every kernel of the table")
# Later parts of a family run its image: 86 also on 87, 100f on 10.3, 120f on 12.1. 90a is Hopper alone.
set(KVANT_CUDA_FAMILIES 80 86 89 90a 100f 110f 120f)

if(NOT KVANT_WITH_CUDA)
  return()
endif()

# Images are chosen by the flags below: CMake's own list knows neither families nor a build for several of them.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

if(KVANT_CUDA_ARCHITECTURES STREQUAL "all")
  set(kvant_cuda_architectures ${KVANT_CUDA_FAMILIES})
else()
  set(kvant_cuda_architectures ${KVANT_CUDA_ARCHITECTURES})
endif()
set(kvant_gencode)
foreach(architecture IN LISTS kvant_cuda_architectures)
  if(NOT architecture IN_LIST KVANT_CUDA_FAMILIES)
    message(FATAL_ERROR "KVANT_CUDA_ARCHITECTURES: \"${architecture}\" is not one of ${KVANT_CUDA_FAMILIES}, or \"all\"")
  endif()
  list(APPEND kvant_gencode "-gencode=arch=compute_${architecture},code=sm_${architecture}")
endforeach()

# kvant_cuda_objects(name sources... [ARCHITECTURES 90a...]): an object library of kernels, for all families that are
# built or for those named. Spills are reported.
function(kvant_cuda_objects name)
  cmake_parse_arguments(arg "" "" "ARCHITECTURES" ${ARGN})
  if(arg_ARCHITECTURES)
    set(kvant_gencode)
    foreach(architecture IN LISTS arg_ARCHITECTURES)
      list(APPEND kvant_gencode "-gencode=arch=compute_${architecture},code=sm_${architecture}")
    endforeach()
  endif()
  add_library(${name} OBJECT ${arg_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/include" "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE tl::expected)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${kvant_gencode} --expt-relaxed-constexpr -lineinfo
    -Xptxas=--warn-on-spills,--warn-on-local-memory-usage>)
endfunction()
