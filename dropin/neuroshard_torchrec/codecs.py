"""Types in which pooled embeddings travel, as the sharders' qcomm codecs have them; their bytes decide the exchange."""

from collections.abc import Mapping, Sequence

import torch
from neuroshard_api.documents.communication import WireType
from torch import nn
from torchrec.distributed.types import CommOp, ModuleSharder

from neuroshard_torchrec.collections import TableCollection

_OPERATIONS = {True: CommOp.SEQUENCE_EMBEDDINGS_ALL_TO_ALL, False: CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL}
"""Of a collection, by whether it returns sequences."""
_BY_DTYPE = {torch.float32: WireType.FP32, torch.float16: WireType.FP16, torch.bfloat16: WireType.BF16}


def wire_of(collections: Sequence[TableCollection]) -> tuple[Mapping[str, WireType] | None, str]:
    """Return the types of both directions, and why they are not priced; empty: they are.

    Args:
        collections: of the planned module.

    Returns:
        None where nothing is encoded, where collections differ, or where the codec's values are neither FP16 nor BF16.
    """
    found = {_types(each.sharder, is_sequence=each.is_sequence) for each in collections}
    if len(found) > 1:
        return None, "sharders have different qcomm codecs; embeddings are priced as FP32 on the wire"
    forward, backward = found.pop() if found else (WireType.FP32, WireType.FP32)
    if forward is None or backward is None:
        return None, "qcomm codecs of neither FP16 nor BF16 are priced as FP32 on the wire"
    if {forward, backward} == {WireType.FP32}:
        return None, ""
    return {"forward": forward, "backward": backward}, ""


def _types(sharder: ModuleSharder[nn.Module], *, is_sequence: bool) -> tuple[WireType | None, WireType | None]:
    """Return a sharder's types forward and backward. None: another one than FP32, FP16, or BF16."""
    codecs = (getattr(sharder, "qcomm_codecs_registry", None) or {}).get(_OPERATIONS[is_sequence].name)
    if codecs is None:
        return WireType.FP32, WireType.FP32
    return _BY_DTYPE.get(codecs.forward.quantized_dtype), _BY_DTYPE.get(codecs.backward.quantized_dtype)
