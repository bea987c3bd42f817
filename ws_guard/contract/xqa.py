"""What the installed XQA says of itself: native signatures, and whether its scratch is as we know.

`sizing.xqa` bounds the scratch by a formula that was read from the kernels. Each statement on which
it stands is looked for in the installed source: an op whose source says something else is not
accounted for, and the reason names what was not found. trtllm-gen's contract is another matter.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from ws_guard.sizing import XQA_OPS

from .cpp import SourceError, find_function, strip_comments
from .facts import EXPORT
from .source import CSRC, NotInstalledError, installed_release, package_root

#: What the JIT specs of XQA's modules are named by; one module per shape of call.
XQA_SPEC_PREFIX = "xqa_"

_BINDING = "flashinfer_xqa_binding.cu"
_WRAPPER = "xqa/xqa_wrapper.cu"

#: Parameters without which a call of the op cannot be accounted for.
_NEEDED = {
    "xqa_wrapper": (
        *("run_sm90_fp8_mha", "multiProcessorCount", "nbKHeads", "output", "q", "maxSeqLen"),
        *("batchSize", "qSeqLen", "semaphores", "scratch"),
    ),
    "xqa_wrapper_mla": (
        *("multiProcessorCount", "output", "q", "maxSeqLen"),
        *("batchSize", "semaphores", "scratch"),
    ),
}

#: Statements that the formula of `sizing.xqa` rests on, by op and file.
_STATEMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "xqa_wrapper": {
        "xqa/defines.h": ("#define M_TILESIZE 32",),
        "xqa/mha.h": (
            "headElems = validElemsPerHead <= 64 ? 64 : (validElemsPerHead <= 128 ? 128",
        ),
        "xqa/utils.h": ("newSeg(uint32_t count = 1, uint32_t alignment = sizeof(T))",),
        "xqa/mha.cu": (
            "constexpr uint3 ctaShapeInWarps = {4, 1, 2};",
            "constexpr uint32_t nbValidRows = rowsPerBlock;",
            "constexpr uint32_t nbValidRows = headGrpSize * beamWidth;",
            "constexpr uint2 warpTile = {64, roundUp(nbValidRows, 16U)};",
            "float data[ThrdRegRowMax::size][quadPerWarp][4];",
            "nbSubSeq = nbSubSeqPerSeq * nbSeq; MemSegmenter<false> segmenter{scratch};",
            "rowMaxBuffers = segmenter.newSeg<SMemWarpRowMax>(nbSubSeq);",
            "rowSumBuffers = segmenter.newSeg<SMemWarpRowMax>(nbSubSeq);",
            (
                "using XSmemBuffer ="
                "Array2D<LdGrain, warpTile.y, exactDiv(inputElemSize* warpTile.x, grainBytes)>;"
            ),
            "using ScratchBuf = Array2D<LdGrain, nbValidRows, SharedMem::XSmemBuffer::cols>;",
            "segmenter.newSeg<Vec<ScratchBuf,",
            (
                "return std::min<uint32_t>("
                "std::max<uint32_t>(1U, multiProcessorCount / (batchSize * nbKHeads)),"
                "divUp(maxSeqLen, ctaTile.x));"
            ),
            (
                "nbTokenBlocksPerGrp = divUp(qSeqLen * headGrpSize, rowsPerBlock);"
                "dim3 const dimGrid{nbSubSeqPerSeq, nbKHeads * nbTokenBlocksPerGrp, batchSize};"
            ),
            "dim3 const dimGrid{nbSubSeqPerSeq, nbKHeads, batchSize};",
        ),
        "xqa/mha_sm90.cu": (
            "#define Q_HEADS_PER_CTA 64",
            "inputTokensPerCta = ctaNbQHeads / headGrpSize;",
            "static_assert(specDecQLen * headGrpSize <= 32",
            "constexpr uint32_t gemm0WarpGrpTileNbTokens = 64;",
            "constexpr uint32_t gemm0NbGmmaGrps = 1;",
            "struct alignas(8) SumMax { float sum; float max; };",
            "using ColWiseVec = Vec<SumMax, ctaNbValidQHeads>;",
            "uint32_t const nbChunks = maxTotalNbSubSeq * nbInputSeqSplit;",
            "constexpr uint32_t alignment = sizeof(Vec<IOHead, ctaNbValidQHeads>);",
            "newSeg<ColWiseVec>(nbChunks, alignment);",
            "newSeg<Vec<IOHead, ctaNbValidQHeads>>(nbChunks, alignment);",
            "scratchMem{scratch, maxNbSubSeq * nbKHeads * batchSize, nbInputSeqSplit};",
            (
                "uint32_t const nbSubSeqPerSeq = [&]() -> uint32_t { float const factor = 0.25f;"
                "return mha::min<uint32_t>(mha::max<uint32_t>(1U,"
                "(uint32_t)round(multiProcessorCount * 3 / (batchSize * nbKHeads) * factor)),"
                "divUp(maxSeqLen, gemm0CtaTileNbTokens)); }();"
            ),
            "dimGrid{divUp(qLen, inputTokensPerCta), nbSubSeqPerSeq, nbKHeads * batchSize};",
        ),
    },
    "xqa_wrapper_mla": {
        "xqa/defines.h": ("#define IS_MLA (HEAD_GRP_SIZE == 128 && HEAD_ELEMS == 576)",),
        "xqa/xqa_wrapper.cu": ("launchMLAFlashInfer(multiProcessorCount, 1,",),
        "xqa/mla_sm120.cu": (
            "tokensPerTile = is_fp8 ? 64 : 32;",
            "inline constexpr uint32_t nbVSplit = 2;",
            "nbProducerCtasPerCga = nbVSplit;",
            (
                "using XBuffer = Array2D<LdGrain, headGrpSize,"
                "exactDiv(mathElemBytes* tokensPerTile, grainBytes)>;"
            ),
            (
                "struct CgaXBuffer { XBuffer x; Vec<float, headGrpSize> rowSum;"
                "Vec<float, headGrpSize> rowMaxLog2e; };"
            ),
            "dim3 const dimGrid{4 * inputSeqLen, 1, nbKHeads * batchSize};",
            "cgaXBuf = static_cast<Vec<CgaXBuffer, nbProducerCtasPerCga>*>(scratch);",
        ),
    },
}


class XqaContract(NamedTuple):
    """What is known of one FlashInfer's XQA.

    `signatures` maps each op that can be accounted for to its parameter names in native order;
    `reasons` says of each other one why not. Both are empty where FlashInfer has no XQA.
    """

    release: str
    signatures: dict[str, tuple[str, ...]]
    reasons: dict[str, str]

    def position(self, op: str, parameter: str) -> int | None:
        """Zero-based native position of a parameter, None where the op has none of that name."""
        names = self.signatures[op]
        return names.index(parameter) if parameter in names else None


def installed_xqa() -> XqaContract:
    """Judge the installed FlashInfer's XQA; raises `NotInstalledError` where there is none."""
    return judge_xqa(package_root() / CSRC, installed_release())


def judge_xqa(csrc: Path, release: str) -> XqaContract:
    """Read the XQA below a `csrc` folder; it need not be one that is known, nor be there."""
    sources = _Sources(csrc)
    signatures: dict[str, tuple[str, ...]] = {}
    reasons: dict[str, str] = {}
    if not (csrc / _BINDING).exists():
        return XqaContract(release, signatures, reasons)
    for op in XQA_OPS.values():
        try:
            exported = dict(EXPORT.findall(sources.text(_BINDING)))
            if op not in exported:
                continue
            names = find_function(sources.text(_WRAPPER), exported[op]).params
            _check(op, names, sources)
            signatures[op] = names
        except (SourceError, NotInstalledError) as error:
            reasons[op] = str(error)
        except (IndexError, ValueError, KeyError) as error:
            reasons[op] = f"the source cannot be read ({type(error).__name__}: {error})"
    return XqaContract(release, signatures, reasons)


def _check(op: str, names: tuple[str, ...], sources: _Sources) -> None:
    for name in _NEEDED[op]:
        if name not in names:
            raise SourceError(f"{op} has no parameter {name}")
    for file, statements in _STATEMENTS[op].items():
        for statement in statements:
            if _squeezed(statement) not in sources.squeezed(file):
                raise SourceError(f"{file} does not say {statement!r}")


def _squeezed(text: str) -> str:
    """Without white space: the formatter breaks lines as it likes."""
    return re.sub(r"\s+", "", text)


class _Sources:
    """The files of one `csrc` folder, read once, without comments."""

    def __init__(self, csrc: Path) -> None:
        self._csrc = csrc
        self._texts: dict[str, str] = {}
        self._without_space: dict[str, str] = {}

    def text(self, file: str) -> str:
        """A file's text; `NotInstalledError` where it cannot be read."""
        if file not in self._texts:
            try:
                raw = (self._csrc / file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise NotInstalledError(
                    f"flashinfer ships no readable {file} ({type(error).__name__})"
                ) from None
            self._texts[file] = strip_comments(raw)
        return self._texts[file]

    def squeezed(self, file: str) -> str:
        """A file's text without white space."""
        if file not in self._without_space:
            self._without_space[file] = _squeezed(self.text(file))
        return self._without_space[file]
