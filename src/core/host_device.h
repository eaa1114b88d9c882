#pragma once

// KVANT_HD marks code that CPU, GPU and oracle share. It compiles as plain C++ without CUDA.
#if defined(__CUDACC__)
#define KVANT_HD __host__ __device__ inline
#else
#define KVANT_HD inline
#endif
