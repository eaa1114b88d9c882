# What gets built for CUDA. Rows are instantiations; CMake writes the .cu files and, per kernel, the table that the host
# chooses from. One .cu holds the variants of one KV format and head dim: reading the headers takes as long as
# compiling a variant.

set(kvant_kernel_sources)

# Of "e4m3:E4m3": format, codec, and the enumerator kE4m3.
function(kvant_split_format kv)
  string(REPLACE ":" ";" kv "${kv}")
  list(GET kv 0 format)
  list(GET kv 1 codec)
  string(SUBSTRING ${format} 0 1 initial)
  string(TOUPPER ${initial} initial)
  string(SUBSTRING ${format} 1 -1 rest)
  set(format ${format} PARENT_SCOPE)
  set(codec ${codec} PARENT_SCOPE)
  set(enumerator "k${initial}${rest}" PARENT_SCOPE)
endfunction()

# kvant_instantiate(decode_splitkv generic TRAITS DecodeTraits KV bf16:Bf16 HEAD_DIMS 64 128 ROW_TILES 1 2 4 EXACT false)
#   KV          cache format : its codec in attn/cuda/common/codecs.cuh
#   ROW_TILES   eight query rows each
#   EXACT       whether page-table entries may name the exact pool
#   SPILLS      <format>_d<head dim> whose kernels may spill registers; elsewhere a spill fails the build for 90a,
#               the family that the kernels' register budgets are for
#   TILE_PAGES  for pages of a tile each; before instances of the same kernel that take any pages
function(kvant_instantiate kernel folder)
  cmake_parse_arguments(arg "TILE_PAGES" "TRAITS" "KV;HEAD_DIMS;ROW_TILES;EXACT;SPILLS" ${ARGN})
  set(sources ${kvant_kernel_sources})
  set(declarations "${kvant_${kernel}_declarations}")
  set(rows "${kvant_${kernel}_rows}")
  set(suffix)
  set(tile_pages false)
  if(arg_TILE_PAGES)
    set(suffix _tile_pages)
    set(tile_pages true)
  endif()
  foreach(kv IN LISTS arg_KV)
    kvant_split_format(${kv})
    foreach(head_dim IN LISTS arg_HEAD_DIMS)
      set(functions)
      foreach(row_tiles IN LISTS arg_ROW_TILES)
        foreach(exact IN LISTS arg_EXACT)
          string(TOLOWER "${kernel}_${format}_d${head_dim}_r${row_tiles}_exact_${exact}${suffix}" function)
          string(APPEND functions
            "KernelImage ${function}(DecodeVariant variant) { return ${kernel}_image<${arg_TRAITS}<${codec}, ${codec}, ${head_dim}, ${row_tiles}, ${exact}>>(variant); }\n")
          string(APPEND declarations "KernelImage ${function}(DecodeVariant variant);\n")
          string(APPEND rows
            "    {KvFormat::${enumerator}, ${head_dim}, ${row_tiles}, ${exact}, ${tile_pages}, &${function}},\n")
        endforeach()
      endforeach()
      set(file "${CMAKE_CURRENT_BINARY_DIR}/kernels/${kernel}_${format}_d${head_dim}${suffix}.cu")
      file(GENERATE OUTPUT ${file} CONTENT
        "#include \"attn/cuda/${folder}/${kernel}.cuh\"\n\nnamespace kvant::attn::cuda {\n\n${functions}\n}  // namespace kvant::attn::cuda\n")
      if(kvant_cuda_architectures STREQUAL "90a" AND NOT "${format}_d${head_dim}" IN_LIST arg_SPILLS)
        set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "-Xptxas=--warning-as-error")
      endif()
      list(APPEND sources ${file})
    endforeach()
  endforeach()
  set(kvant_kernel_sources ${sources} PARENT_SCOPE)
  set(kvant_${kernel}_declarations "${declarations}" PARENT_SCOPE)
  set(kvant_${kernel}_rows "${rows}" PARENT_SCOPE)
endfunction()

# Writes <kernel>_instances(), once all rows of the kernel are known.
function(kvant_kernel_instances kernel folder type)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/kernels/${kernel}_instances.cc")
  set(instances "constexpr std::span<const ${type}> kInstances;\n")
  if(kvant_${kernel}_rows)
    set(instances "constexpr ${type} kInstances[] = {\n${kvant_${kernel}_rows}};\n")
  endif()
  file(GENERATE OUTPUT ${file} CONTENT
    "#include \"attn/cuda/${folder}/${kernel}.h\"\n\nnamespace kvant::attn::cuda {\n\n${kvant_${kernel}_declarations}\nnamespace {\n${instances}}  // namespace\n\nstd::span<const ${type}> ${kernel}_instances() { return kInstances; }\n\n}  // namespace kvant::attn::cuda\n")
  set(kvant_kernel_sources ${kvant_kernel_sources} ${file} PARENT_SCOPE)
endfunction()

# Spills, but for one load of nvfp4 with exact pages all outside the loops over tiles: up to 64 bytes of kernels with one
# row tile, twice that with exact pages, and of four row tiles with exact pages; nvfp4 with four row tiles 16 bytes.
# Exact pages have a quantised base, so bf16 needs no variant for them. Base formats f16 and e5m2, mixed formats and the
# other head dims are not instantiated yet; the kernel table refuses them.
kvant_instantiate(decode_splitkv generic TRAITS DecodeTilePagesTraits
  KV nvfp4:Nvfp4 HEAD_DIMS 128 ROW_TILES 2 4 EXACT false SPILLS nvfp4_d128 TILE_PAGES)
kvant_instantiate(decode_splitkv generic TRAITS DecodeTraits
  KV bf16:Bf16 HEAD_DIMS 64 128 ROW_TILES 1 2 4 EXACT false SPILLS bf16_d64 bf16_d128)
kvant_instantiate(decode_splitkv generic TRAITS DecodeTraits
  KV e4m3:E4m3 nvfp4:Nvfp4 HEAD_DIMS 64 128 ROW_TILES 1 2 4 EXACT false true SPILLS e4m3_d64 e4m3_d128 nvfp4_d64 nvfp4_d128)
kvant_kernel_instances(decode_splitkv generic DecodeInstance)

set(kvant_sm90_kernel_sources)

# kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits SOURCES kBf16 DIMS 128:128 ROWS 64)
#   SOURCES   TileSource values
#   DIMS      largest head dims of K and V; smaller ones are padded
#   ROWS      query rows of an item
# FOLDER sm90: Hopper's own kernel, for head dims that are alike.
function(kvant_instantiate_prefill)
  cmake_parse_arguments(arg "" "KERNEL;FOLDER;TRAITS" "SOURCES;DIMS;ROWS" ${ARGN})
  set(declarations "${kvant_prefill_flash_declarations}")
  set(rows "${kvant_prefill_flash_rows}")
  set(capability 0)
  set(list kvant_kernel_sources)
  if(arg_FOLDER STREQUAL "sm90")
    set(capability 90)
    set(list kvant_sm90_kernel_sources)
  endif()
  set(sources ${${list}})
  foreach(source IN LISTS arg_SOURCES)
    foreach(dims IN LISTS arg_DIMS)
      string(REPLACE ":" ", " dims_list "${dims}")
      string(REPLACE ":" "x" dims_name "${dims}")
      foreach(num_rows IN LISTS arg_ROWS)
        string(TOLOWER "${arg_KERNEL}_${source}_d${dims_name}_r${num_rows}" function)
        set(file "${CMAKE_CURRENT_BINARY_DIR}/kernels/${function}.cu")
        file(GENERATE OUTPUT ${file} CONTENT
          "#include \"attn/cuda/${arg_FOLDER}/${arg_KERNEL}.cuh\"\n\nnamespace kvant::attn::cuda {\n\nKernelImage ${function}() {\n  return ${arg_KERNEL}_image<${arg_TRAITS}<TileSource::${source}, ${dims_list}, ${num_rows}>>();\n}\n\n}  // namespace kvant::attn::cuda\n")
        list(APPEND sources ${file})
        string(APPEND declarations "KernelImage ${function}();\n")
        string(APPEND rows "    {TileSource::${source}, ${dims_list}, ${num_rows}, ${capability}, &${function}},\n")
      endforeach()
    endforeach()
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
  set(kvant_prefill_flash_declarations "${declarations}" PARENT_SCOPE)
  set(kvant_prefill_flash_rows "${rows}" PARENT_SCOPE)
endfunction()

# The core matrix pads head dim 64 to 128 where only the generic kernel runs, and expands f16 caches like quantised ones.
# Gemma's heads are 256 wide. Accumulators of heads wider than 128 leave no registers for more than 64 rows.
kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits
  SOURCES kBf16 kQuantised DIMS 128:128 ROWS 64 128)
kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits
  SOURCES kBf16 kQuantised DIMS 256:256 ROWS 64)
if(KVANT_CUDA_MATRIX STREQUAL "full")
  kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits SOURCES kF16 DIMS 128:128 ROWS 64 128)
  kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits
    SOURCES kBf16 kF16 kQuantised DIMS 64:64 ROWS 64 128)
  kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits
    SOURCES kBf16 kF16 kQuantised DIMS 192:128 ROWS 64)
  kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits SOURCES kF16 DIMS 256:256 ROWS 64)
  # Decode and verify above all: few rows an item.
  kvant_instantiate_prefill(KERNEL prefill_flash FOLDER generic TRAITS PrefillTraits
    SOURCES kBf16 kF16 kQuantised DIMS 512:512 ROWS 16)
endif()
if("90a" IN_LIST kvant_cuda_architectures)
  kvant_instantiate_prefill(KERNEL prefill_wgmma FOLDER sm90 TRAITS PrefillWgmmaTraits
    SOURCES kBf16 kQuantised DIMS 64:64 128:128 ROWS 64 128 192)
  if(KVANT_CUDA_MATRIX STREQUAL "full")
    kvant_instantiate_prefill(KERNEL prefill_wgmma FOLDER sm90 TRAITS PrefillWgmmaTraits
      SOURCES kF16 DIMS 64:64 128:128 ROWS 64 128 192)
  endif()
endif()
kvant_kernel_instances(prefill_flash generic PrefillInstance)

# kvant_instantiate_shared(KV e4m3:E4m3 HEAD_DIMS 128 ROW_TILES 1 EXACT false true): decode where requests share pages, on
# Hopper. Arguments are kvant_instantiate's.
function(kvant_instantiate_shared)
  cmake_parse_arguments(arg "" "" "KV;HEAD_DIMS;ROW_TILES;EXACT" ${ARGN})
  set(sources ${kvant_sm90_kernel_sources})
  set(declarations "${kvant_decode_shared_declarations}")
  set(rows "${kvant_decode_shared_rows}")
  foreach(kv IN LISTS arg_KV)
    kvant_split_format(${kv})
    foreach(head_dim IN LISTS arg_HEAD_DIMS)
      foreach(row_tiles IN LISTS arg_ROW_TILES)
        foreach(exact IN LISTS arg_EXACT)
          string(TOLOWER "decode_shared_${format}_d${head_dim}_r${row_tiles}_exact_${exact}" function)
          set(traits "DecodeSharedTraits<${codec}, ${codec}, ${head_dim}, ${row_tiles}, ${exact}>")
          set(file "${CMAKE_CURRENT_BINARY_DIR}/kernels/${function}.cu")
          file(GENERATE OUTPUT ${file} CONTENT
            "#include \"attn/cuda/sm90/decode_shared.cuh\"\n\nnamespace kvant::attn::cuda {\n\nKernelImage ${function}() { return decode_shared_image<${traits}>(); }\nint32_t ${function}_bytes(int32_t max_requests) { return decode_shared_bytes<${traits}>(max_requests); }\n\n}  // namespace kvant::attn::cuda\n")
          list(APPEND sources ${file})
          string(APPEND declarations "KernelImage ${function}();\nint32_t ${function}_bytes(int32_t max_requests);\n")
          string(APPEND rows
            "    {KvFormat::${enumerator}, ${head_dim}, ${row_tiles}, ${exact}, &${function}, &${function}_bytes},\n")
        endforeach()
      endforeach()
    endforeach()
  endforeach()
  set(kvant_sm90_kernel_sources ${sources} PARENT_SCOPE)
  set(kvant_decode_shared_declarations "${declarations}" PARENT_SCOPE)
  set(kvant_decode_shared_rows "${rows}" PARENT_SCOPE)
endfunction()

set(kvant_decode_shared_declarations)
set(kvant_decode_shared_rows)
if("90a" IN_LIST kvant_cuda_architectures)
  kvant_instantiate_shared(KV bf16:Bf16 HEAD_DIMS 128 ROW_TILES 1 EXACT false)
  kvant_instantiate_shared(KV e4m3:E4m3 nvfp4:Nvfp4 HEAD_DIMS 128 ROW_TILES 1 EXACT false true)
endif()
kvant_kernel_instances(decode_shared sm90 SharedDecodeInstance)

# Append, ageing, conversion and dequantisation take everything at run time.
list(APPEND kvant_kernel_sources "${CMAKE_CURRENT_SOURCE_DIR}/cuda/generic/cache_kernels.cu")

kvant_cuda_objects(kvant_attn_kernels ${kvant_kernel_sources})
set(kvant_kernel_objects $<TARGET_OBJECTS:kvant_attn_kernels>)
if(kvant_sm90_kernel_sources)
  kvant_cuda_objects(kvant_attn_sm90_kernels ${kvant_sm90_kernel_sources} ARCHITECTURES 90a)
  list(APPEND kvant_kernel_objects $<TARGET_OBJECTS:kvant_attn_sm90_kernels>)
endif()
