// Stands in for FlashInfer's kernel runner: the launcher above it is the real one, but what it
// would hand to the GPU is written down here instead of launched.
#pragma once

#include <flashinfer/trtllm/fmha/fmhaRunnerParams.h>

#include <cstdint>
#include <string>
#include <utility>

// Read from Python by ctypes; its twin is `_Record` in ws_guard/launcher/recorder.py.
struct WsGuardRecord {
  uint64_t launches;  // launches of this thread so far; 0: nothing below is set
  uint64_t counter;   // addresses; 0: not handed over
  uint64_t softmax_stats;
  uint64_t scratch;
  uint64_t lse;
  int64_t batch;
  int64_t heads;
  int64_t max_q_len;
  int64_t sum_q;
  int64_t sm_count;
  int64_t scratch_bytes;  // -1: this release does not tell the kernel
};

namespace ws_guard {
inline thread_local WsGuardRecord record{};

inline uint64_t address(void const* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// The member stands in releases from 0.7 on: the first overload drops out where it does not.
template <typename Params>
auto scratchBytes(Params const& params, int)
    -> decltype(static_cast<int64_t>(params.mMultiCtasKvScratchBytes)) {
  return static_cast<int64_t>(params.mMultiCtasKvScratchBytes);
}
template <typename Params>
int64_t scratchBytes(Params const&, long) {
  return -1;
}
}  // namespace ws_guard

extern "C" __attribute__((visibility("default"), used)) void ws_guard_last_launch(
    WsGuardRecord* out) {
  *out = ws_guard::record;
}

class TllmGenFmhaRunner {
 public:
  // Data types and SageAttention block sizes, as many as the release passes.
  template <typename... Args>
  explicit TllmGenFmhaRunner(Args...) {}

  int smVersion() const { return 100; }

  bool isSupported(TllmGenFmhaRunnerParams const&) const { return true; }

  std::pair<bool, std::string> isSupportedWithInfo(TllmGenFmhaRunnerParams const&) const {
    return {true, ""};
  }

  int getMlaInitialHeadDivisor(TllmGenFmhaRunnerParams const&) const { return 1; }

  void run(TllmGenFmhaRunnerParams const& params) const {
    WsGuardRecord& record = ws_guard::record;
    record.launches += 1;
    record.counter = ws_guard::address(params.multiCtasKvCounterPtr);
    record.softmax_stats = ws_guard::address(params.softmaxStatsPtr);
    record.scratch = ws_guard::address(params.multiCtasKvScratchPtr);
    record.lse = ws_guard::address(params.lsePtr);
    record.batch = params.mBatchSize;
    record.heads = params.mNumHeadsQ;
    record.max_q_len = params.mMaxSeqLenQ;
    record.sum_q = params.mSumOfSeqLensQ;
    record.sm_count = params.mMultiProcessorCount;
    record.scratch_bytes = ws_guard::scratchBytes(params, 0);
  }
};
