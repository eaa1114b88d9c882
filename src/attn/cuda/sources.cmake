# A missing backend is another source file.
set(sources common/page_plane.cc)
if(KVANT_WITH_CUDA)
  list(APPEND sources append.cc backend.cc launch_config.cc merge.cc prefill_route.cc shared_route.cc)
else()
  list(APPEND sources append_no_cuda.cc backend_no_cuda.cc)
endif()
