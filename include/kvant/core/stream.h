#pragma once

namespace kvant {

class ThreadPool;

/// Names the queue that work is put on: a thread pool on the CPU, where calls have finished when they return, or a
/// cudaStream_t, where they are asynchronous. Owns nothing; exactly one member is set.
struct Stream {
  ThreadPool* pool = nullptr;
  void* cuda = nullptr;  ///< cudaStream_t

  static Stream on_cpu(ThreadPool& pool) { return {.pool = &pool}; }
  static Stream on_cuda(void* stream) { return {.cuda = stream}; }
};

}  // namespace kvant
