#pragma once

// Two functions of the OpenMP runtime that oneDNN brings along. Declared here because the compiler's own omp.h may
// belong to another runtime.
extern "C" {
int omp_get_max_threads();
void omp_set_num_threads(int num_threads);
}

namespace kvant::ops {

/// Sets how many threads OpenMP regions started by this thread use, while it lives. The setting is per calling thread,
/// so other users of OpenMP in the process see nothing of it.
class OpenMpTeam {
 public:
  explicit OpenMpTeam(int num_threads) : before_(omp_get_max_threads()) {
    if (before_ != num_threads) omp_set_num_threads(num_threads);
  }
  ~OpenMpTeam() { omp_set_num_threads(before_); }
  OpenMpTeam(const OpenMpTeam&) = delete;
  OpenMpTeam& operator=(const OpenMpTeam&) = delete;

 private:
  int before_;
};

}  // namespace kvant::ops
