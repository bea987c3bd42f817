"""Names for what belongs to torch, FlashInfer and the engines.

Nothing of theirs is imported for its type, so nobody checks what is done with one: a name says what
is meant.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
#: A `torch.device`, or what it takes.
Device: TypeAlias = Any
CudaGraph: TypeAlias = Any
#: A module object that FlashInfer loaded: native functions are its attributes.
NativeModule: TypeAlias = Any
#: Any other object of theirs; its parameter's name and the module's docstring say which.
Foreign: TypeAlias = Any
