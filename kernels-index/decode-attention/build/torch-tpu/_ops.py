import torch

ops = torch.ops._decode_attention_tpu_cdece45


def add_op_namespace_prefix(op_name: str) -> str:
    return f"_decode_attention_tpu_cdece45::{op_name}"
