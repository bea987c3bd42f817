// Releases up to 0.6.15 include NVRTC's header without using it in the launcher; a machine without
// the CUDA toolkit's compiler package need not have it.
#pragma once
